"""The FSDP2 engine: shards a model, runs micro-batches forward and backward, takes optimizer steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable.checkpoint_activation import checkpoint as checkpoint_activations
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from rl_workers.attention import attention_dtype
from rl_workers.config import FSDPConfig, OptimConfig
from rl_workers.host_comm import reduce_in_place, use_host_memory
from rl_workers.layout import Layout
from rl_workers.loading import Initialiser, load_weights
from rl_workers.models import HeadedModel
from rl_workers.optim import build_optimizer, build_scheduler, take_step
from rl_workers.packing import PackedBatch
from rl_workers.profiler import DistProfiler
from rl_workers.rms_norm import use_fast_norms
from rl_workers.rotary import use_fast_rotary

logger = logging.getLogger(__name__)

LossFn = Callable[[PackedBatch], Tensor]


class FSDPEngine:
    """A sharded model with, if it is trained, its optimizer and schedule.

    Args:
        model: built on meta; it is sharded and filled in place.
        path: the Hugging Face folder to fill it from.
        optim: None for a model that is only evaluated.
        grad_clip: largest norm of the gradient, 0 for none.
        new: initial values of parameters that the folder does not hold.
        checkpoint_layers: keep only each layer's input and compute the rest again backwards.
    """

    def __init__(
        self,
        model: HeadedModel,
        path: str,
        layout: Layout,
        fsdp: FSDPConfig,
        *,
        new: Initialiser,
        optim: OptimConfig | None = None,
        grad_clip: float = 0.0,
        checkpoint_layers: bool = False,
    ) -> None:
        self.module = model
        self.layout = layout
        self.fsdp = fsdp
        self.grad_clip = grad_clip
        if optim is None:
            model.requires_grad_(False)
        if layout.device.type == "cpu":
            use_fast_norms(model)
            use_fast_rotary(model, attention_dtype(model.lm.config))
        self._shard(checkpoint_layers)
        storage = torch.device("cpu") if fsdp.param_offload else layout.device
        load_weights(model, model.lm, path, storage, new)
        self.optimizer = None if optim is None else build_optimizer(model.parameters(), optim)
        self.scheduler = (
            None if optim is None or self.optimizer is None else build_scheduler(self.optimizer, optim)
        )

    def _shard(self, checkpoint_layers: bool) -> None:
        precision = MixedPrecisionPolicy(
            param_dtype=getattr(torch, self.fsdp.compute_dtype),
            reduce_dtype=getattr(torch, self.fsdp.reduce_dtype),
        )
        offload = OffloadPolicy()
        if self.fsdp.param_offload:
            offload = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        options: dict[str, Any] = {
            "mesh": self.layout.mesh,
            "mp_policy": precision,
            "offload_policy": offload,
            "reshard_after_forward": self.fsdp.reshard_after_forward,
        }
        layers = transformer_layers(self.module.lm)
        for layer in layers if checkpoint_layers else []:
            checkpoint_activations(layer)
        one_by_one = checkpoint_layers or self.fsdp.reshard_after_forward or self.layout.device.type != "cpu"
        for group in [[layer] for layer in layers] if one_by_one else layer_groups(layers, self.module):
            fully_shard(group, **options)
        fully_shard(self.module, **options)
        self._choose_collectives()

    def _choose_collectives(self) -> None:
        """Sum gradients over ranks; without a GPU, move as few bytes as the ranks' places allow."""
        modules = [module for module in self.module.modules() if isinstance(module, FSDPModule)]
        if self.layout.world_size > 1:
            for module in modules:
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        if self.layout.device.type != "cpu":
            return
        if self.layout.mesh.size(-1) > 1:
            use_host_memory(modules, self.layout.shard_group)
        else:
            reduce_in_place(modules)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return 0.0 if self.scheduler is None else float(self.scheduler.get_last_lr()[0])

    def parameters(self) -> list[DTensor]:
        """The parameters that are trained."""
        return [cast(DTensor, p) for p in self.module.parameters() if p.requires_grad]

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """No gradients inside; the gathered weights are freed at the end."""
        try:
            with torch.no_grad():
                yield
        finally:
            self.reshard()

    def reshard(self) -> None:
        """Free gathered weights, so that parameters are shards again wherever they are read."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def train_step(self, batches: Sequence[PackedBatch], loss_fn: LossFn) -> float:
        """One optimizer step on this rank's micro-batches (every rank must bring as many).

        ``loss_fn`` returns the micro-batch's part of the *sum* that is the global loss.

        Returns:
            The norm of the global gradient before clipping. If it is not finite no step is taken.
        """
        if self.optimizer is None or self.scheduler is None:
            raise RuntimeError("train_step was called on an engine that was built without an optimizer")
        self.optimizer.zero_grad(set_to_none=True)
        for index, batch in enumerate(batches):
            self._prepare_backward(last=index == len(batches) - 1)
            with DistProfiler.span("forward"):
                loss = loss_fn(batch)
            with DistProfiler.span("backward"):
                torch.autograd.backward(loss)
        norm = self._grad_norm()
        if math.isfinite(norm):
            with DistProfiler.span("optimizer"):
                excess = (norm + 1e-6) / self.grad_clip if self.grad_clip else 0.0
                take_step(self.optimizer, max(1.0, excess))
        else:
            logger.warning("the gradient's norm is %s: no step is taken", norm)
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _prepare_backward(self, last: bool) -> None:
        """Where memory allows, reduce gradients and free weights only behind the last micro-batch."""
        if self.fsdp.reshard_after_forward:
            return
        root = cast(FSDPModule, self.module)
        root.set_requires_gradient_sync(last)
        root.set_reshard_after_backward(last)
        root.set_is_last_backward(last)

    def _grad_norm(self) -> float:
        """Norm of the global gradient, from local shards and one reduction."""
        grads = [cast(DTensor, p.grad).to_local() for p in self.parameters() if p.grad is not None]
        total = torch.zeros((), dtype=torch.float32, device=self.layout.device)
        for norm_of_shard in torch._foreach_norm(grads, 2, torch.float32) if grads else ():
            total += norm_of_shard.to(total.device).square()
        dist.all_reduce(total, group=self.layout.shard_group)
        return float(total.sqrt())


def transformer_layers(lm: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a Hugging Face model, in order."""
    names = set(getattr(lm, "_no_split_modules", None) or [])
    return [module for module in lm.modules() if type(module).__name__ in names]


def layer_groups(layers: Sequence[nn.Module], root: nn.Module) -> list[list[nn.Module]]:
    """Neighbouring layers, as many together as have no more parameters than ``root`` has besides its layers.

    A group is gathered and reduced at once. On a CPU nothing overlaps with that, and each time the ranks wait
    for the slowest: so seldom is better, as far as it needs no larger buffer than the embedding does.
    """
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    room = sum(p.numel() for p in root.parameters()) - sum(sizes)
    groups: list[list[nn.Module]] = []
    left = 0
    for layer, size in zip(layers, sizes, strict=True):
        if not groups or size > left:
            groups.append([])
            left = room
        groups[-1].append(layer)
        left -= size
    return groups
