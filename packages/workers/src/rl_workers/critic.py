"""The worker that trains the value model."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from rl_algos import Metric, value_loss
from rl_controller import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from rl_protocol import DataProto
from rl_workers.checkpoint import Checkpointer
from rl_workers.config import CriticConfig
from rl_workers.engine import FSDPEngine
from rl_workers.engine_worker import EngineWorker, columns, cut_micro_batches, evaluate_rows, result
from rl_workers.export import export_model
from rl_workers.loading import build_on_meta, nothing_new
from rl_workers.lora import add_adapters, initial_adapter
from rl_workers.models import ValueModel
from rl_workers.packing import PackedBatch
from rl_workers.profiler import DistProfiler
from rl_workers.reduction import reduce_metrics
from rl_workers.ulysses import check_heads

_BUDGET_KEY = "critic.ppo_max_token_len_per_gpu"
_UPDATE = ("response_mask", "returns", "values", "row_weights")
_critic = make_nd_compute_dataproto_dispatch_fn(mesh_name="critic")


class CriticWorker(EngineWorker):
    """A token classifier with one label whose output is the value before each response token.

    Its head starts at zero unless the model's folder holds one (a sequence classifier's ``score`` fits).
    """

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.critic: FSDPEngine | None = None
        self._checkpointer: Checkpointer | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the sharded value model; collective over the group's ranks."""
        config = self.config
        fsdp = config.fsdp_config
        layout = self.setup_device(
            config.device, "critic", fsdp.fsdp_size, config.ulysses_sequence_parallel_size
        )
        dtype = getattr(torch, fsdp.model_dtype)
        lm = build_on_meta(AutoModelForTokenClassification, config.model, dtype, num_labels=1)
        check_heads(lm.config, layout.sp_size)
        if config.model.lora_rank:
            add_adapters(lm, config.model)
        self.critic = FSDPEngine(
            ValueModel(lm, layout.sp_group),
            config.model.path,
            layout,
            fsdp,
            new=self._new_parameter,
            optim=config.optim,
            grad_clip=config.grad_clip,
            checkpoint_layers=config.model.enable_gradient_checkpointing,
        )
        self._checkpointer = Checkpointer(self.critic)

    def _new_parameter(self, name: str, shape: torch.Size) -> Tensor:
        if ".lora_" in name:
            return initial_adapter(name, shape, self.config.seed)
        if name.split(".")[0] in ("score", "classifier"):
            return torch.zeros(shape)
        return nothing_new(name, shape)

    @register(dispatch_mode=_critic, read_only=True)
    @DistProfiler.annotate()
    def compute_values(self, data: DataProto) -> DataProto:
        """``values`` ``[B, R]``: the value of the state before each response token."""
        engine = self.need(self.critic, "value model")
        mask = columns(data, ["response_mask"])["response_mask"]

        def run(batch: PackedBatch) -> tuple[Tensor, ...]:
            return (cast(Tensor, engine.module(batch)),)

        return result(evaluate_rows(engine, self._cut(data, engine), mask, run, ("values",)))

    @register(dispatch_mode=_critic, read_only=True)
    @DistProfiler.annotate()
    def update_critic(self, data: DataProto) -> DataProto:
        """One optimizer step on the global mini-batch of which ``data`` is this rank's part.

        Columns: ``input_ids attention_mask response_mask returns values row_weights``.

        Returns:
            No rows; ``meta_info["metrics"]`` of the whole mini-batch, the same on every rank.
        """
        engine = self.need(self.critic, "value model")
        device = engine.layout.device
        tensors = {name: x.to(device) for name, x in columns(data, _UPDATE).items()}
        metrics: list[dict[str, Metric]] = []

        def loss_fn(batch: PackedBatch) -> Tensor:
            values = cast(Tensor, engine.module(batch))
            return self._loss(batch, values, tensors, metrics)

        rate = engine.lr
        norm = engine.train_step(self._cut(data, engine), loss_fn)
        found = reduce_metrics(metrics, engine.layout) | {"critic/grad_norm": norm, "critic/lr": rate}
        return result({}, metrics=found)

    def _loss(
        self, batch: PackedBatch, values: Tensor, tensors: dict[str, Tensor], metrics: list[dict[str, Metric]]
    ) -> Tensor:
        if batch.is_dummy:
            return values.sum() * 0.0
        rows, slots = (x.to(values.device) for x in torch.unique(batch.rows, return_inverse=True))
        part = {name: x[rows] for name, x in tensors.items()}
        shape = part["response_mask"].shape
        predicted = values.new_zeros(shape).index_put((slots, batch.columns.to(values.device)), values)
        loss, found = value_loss(
            predicted,
            part["returns"],
            part["values"],
            part["response_mask"],
            self.config.cliprange_value,
            row_weights=part["row_weights"],
        )
        named = {f"critic/{name}": metric for name, metric in found.items()}
        named["critic/vf_loss"] = Metric.sum(loss)
        named["critic/vpred_mean"] = Metric.mean(predicted, part["response_mask"])
        metrics.append(named)
        return loss

    def _cut(self, data: DataProto, engine: FSDPEngine) -> list[PackedBatch]:
        budget = self.config.ppo_max_token_len_per_gpu
        return cut_micro_batches(data, self.config.model, budget, _BUDGET_KEY, engine.layout)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self, path: str, global_step: int = 0, with_optimizer: bool = True, blocking: bool = True
    ) -> None:
        """Save the value model to a folder; see :class:`rl_workers.Checkpointer`."""
        self.need(self.critic, "value model")
        cast(Checkpointer, self._checkpointer).save(
            path, global_step, with_optimizer=with_optimizer, blocking=blocking
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait_checkpoint(self) -> None:
        """Wait for a save in the background."""
        self.need(self.critic, "value model")
        cast(Checkpointer, self._checkpointer).wait()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: str, with_optimizer: bool = True) -> int:
        """Load the value model from a folder that any number of ranks saved; returns the global step."""
        self.need(self.critic, "value model")
        return cast(Checkpointer, self._checkpointer).load(path, with_optimizer=with_optimizer)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_hf(self, path: str, dtype: str = "float32") -> None:
        """Write the value model as a Hugging Face token classifier."""
        engine = self.need(self.critic, "value model")
        engine.reshard()
        export_model(engine.module.lm, self.config.model.path, path, getattr(torch, dtype))
