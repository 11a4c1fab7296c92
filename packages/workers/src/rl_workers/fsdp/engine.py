"""The FSDP2 engine: shards a model, runs micro-batches forward and backward, takes optimizer steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Unpack, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from rl_rollout import BaseRollout, FSDPVLLMShardingManager
from rl_rollout.weights.sync import gather_named
from rl_workers.compute.packing import PackedBatch
from rl_workers.config import FSDPConfig, OptimConfig
from rl_workers.engine.base import HeadOptions, LossFn, Reader, TrainEngine
from rl_workers.fsdp.adapters import AdapterShardingManager, adapter_weights, merged_weights
from rl_workers.fsdp.checkpoint import Checkpointer
from rl_workers.fsdp.loading import load_weights
from rl_workers.fsdp.mesh import FSDPLayout
from rl_workers.fsdp.optim import build_optimizer, build_scheduler, take_step
from rl_workers.fsdp.sharding import shard, sharded_modules
from rl_workers.model.building import Initialiser
from rl_workers.model.export import write_adapter, write_model
from rl_workers.model.fast_layers import use_fast_layers
from rl_workers.model.heads import HeadedModel
from rl_workers.profiler import DistProfiler

logger = logging.getLogger(__name__)


class FSDPEngine(TrainEngine):
    """A sharded model with, if it is trained, its optimizer and schedule.

    Besides what every engine offers, its ``module`` can be called: within :meth:`evaluation`, or in the loss
    function of :meth:`train_step`.

    Args:
        model: built on meta; it is sharded and filled in place.
        path: the Hugging Face folder to fill it from.
        optim: None for a model that is only evaluated.
        grad_clip: largest norm of the gradient, 0 for none.
        new: initial values of parameters that the folder does not hold.
        checkpoint_layers: keep only each layer's input and compute the rest again backwards.
        peft_config: what peft says of the model's adapters; None if it has none.
    """

    layout: FSDPLayout

    def __init__(
        self,
        model: HeadedModel,
        path: str,
        layout: FSDPLayout,
        fsdp: FSDPConfig,
        *,
        new: Initialiser,
        optim: OptimConfig | None = None,
        grad_clip: float = 0.0,
        checkpoint_layers: bool = False,
        peft_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.module = model
        self.path = path
        self.layout = layout
        self.fsdp = fsdp
        self.grad_clip = grad_clip
        self.peft_config = peft_config
        if optim is None:
            model.requires_grad_(False)
        if layout.device.type == "cpu":
            use_fast_layers(model.lm)
        shard(model, layout, fsdp, checkpoint_layers)
        storage = torch.device("cpu") if fsdp.param_offload else layout.device
        load_weights(model, model.lm, path, storage, new)
        self.optimizer = None if optim is None else build_optimizer(model.parameters(), optim)
        self.scheduler = (
            None if optim is None or self.optimizer is None else build_scheduler(self.optimizer, optim)
        )

    @property
    def lr(self) -> float:
        """See :class:`TrainEngine`."""
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
        for module in sharded_modules(self.module):
            module.reshard()

    def evaluate(self, batches: Sequence[PackedBatch], read: Reader, **options: Unpack[HeadOptions]) -> None:
        """See :class:`TrainEngine`; every rank has answers."""
        with self.evaluation():
            for batch in batches:
                read(batch, self.module(batch, **options))

    def train(self, batches: Sequence[PackedBatch], loss_fn: LossFn, **options: Unpack[HeadOptions]) -> float:
        """See :class:`TrainEngine`; every rank has answers."""
        return self.train_step(batches, lambda batch: loss_fn(batch, self.module(batch, **options)))

    def train_step(self, batches: Sequence[PackedBatch], loss_fn: Callable[[PackedBatch], Tensor]) -> float:
        """One optimizer step on this rank's micro-batches (every rank must bring as many).

        ``loss_fn`` calls :attr:`module` and returns the micro-batch's part of the *sum* that is the global
        loss.

        Returns:
            The norm of the global gradient before clipping. If it is not finite no step is taken, nor if it
            is 0: where nothing was learnt, AdamW would still move the weights by its momentum.
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
        if norm > 0 and math.isfinite(norm):
            with DistProfiler.span("optimizer"):
                excess = (norm + 1e-6) / self.grad_clip if self.grad_clip else 0.0
                take_step(self.optimizer, max(1.0, excess))
        elif norm:
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

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """See :class:`TrainEngine`."""
        self.reshard()
        return gather_named(merged_weights(self.module.lm), dtype)

    def sharding_manager(self, rollout: BaseRollout) -> FSDPVLLMShardingManager:
        """See :class:`TrainEngine`."""
        if self.peft_config is None:
            return FSDPVLLMShardingManager(self.module.lm, rollout)
        return AdapterShardingManager(self.module.lm, rollout, self.peft_config)

    @cached_property
    def _checkpointer(self) -> Checkpointer:
        return Checkpointer(self)

    def save(
        self, path: str, global_step: int, *, with_optimizer: bool = True, blocking: bool = True
    ) -> None:
        """See :class:`TrainEngine`."""
        self._checkpointer.save(path, global_step, with_optimizer=with_optimizer, blocking=blocking)

    def wait(self) -> None:
        """See :class:`TrainEngine`."""
        self._checkpointer.wait()

    def load(self, path: str, *, with_optimizer: bool = True) -> int:
        """See :class:`TrainEngine`."""
        return self._checkpointer.load(path, with_optimizer=with_optimizer)

    def check(self, path: str) -> None:
        """See :class:`TrainEngine`."""
        self._checkpointer.check(path)

    def export(self, path: str, dtype: torch.dtype) -> None:
        """See :class:`TrainEngine`."""
        write_model(self.weights(dtype), self.module.lm, self.path, path, dtype)

    def export_adapter(self, path: str) -> None:
        """See :class:`TrainEngine`."""
        self.reshard()
        weights = gather_named(adapter_weights(self.module.lm), torch.float32)
        write_adapter(weights, self.peft_config or {}, path)
