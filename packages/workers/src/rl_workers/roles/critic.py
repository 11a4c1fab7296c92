"""The worker that trains the value model."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import AutoModelForTokenClassification

from rl_algos import Metric, value_loss
from rl_controller import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from rl_protocol import DataProto
from rl_workers.compute.packing import PackedBatch
from rl_workers.config import CriticConfig
from rl_workers.engine.base import Answer, TrainEngine
from rl_workers.engine.reduction import reduce_metrics
from rl_workers.model.building import nothing_new
from rl_workers.model.heads import ValueModel
from rl_workers.model.hub import localized
from rl_workers.profiler import DistProfiler
from rl_workers.roles.base import TrainedWorker
from rl_workers.roles.rows import answer_rows, columns, cut_micro_batches, response_mask, result

_BUDGET_KEY = "critic.ppo_max_token_len_per_gpu"
_UPDATE = ("response_mask", "returns", "values", "row_weights")
_critic = make_nd_compute_dataproto_dispatch_fn(mesh_name="critic")


class CriticWorker(TrainedWorker):
    """A token classifier with one label whose output is the value before each response token.

    Its head starts at zero unless the model's folder holds one (a sequence classifier's ``score`` fits).
    """

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.critic: TrainEngine | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build the sharded value model; collective over the group's ranks."""
        config = self.config = replace(self.config, model=localized(self.config.model))
        fsdp = config.fsdp_config
        self.setup_device(config.device, "critic", fsdp.fsdp_size, config.ulysses_sequence_parallel_size)
        self.critic = self.build_engine(
            ValueModel,
            AutoModelForTokenClassification,
            config.model,
            fsdp,
            new=_new_head,
            optim=config.optim,
            grad_clip=config.grad_clip,
            seed=config.seed,
            num_labels=1,
        )

    def trained(self) -> TrainEngine:
        """The value model."""
        return self.need(self.critic, "value model")

    @register(dispatch_mode=_critic, read_only=True)
    @DistProfiler.annotate()
    def compute_values(self, data: DataProto) -> DataProto:
        """``values`` ``[B, R]``: the value of the state before each response token."""
        engine = self.trained()
        return result(answer_rows(engine, self._cut(data, engine), response_mask(data), ("values",)))

    @register(dispatch_mode=_critic, read_only=True)
    @DistProfiler.annotate()
    def update_critic(self, data: DataProto) -> DataProto:
        """One optimizer step on the global mini-batch of which ``data`` is this rank's part.

        Columns: ``input_ids attention_mask response_mask returns values row_weights``.

        Returns:
            No rows; ``meta_info["metrics"]`` of the whole mini-batch, the same on every rank.
        """
        engine = self.trained()
        device = engine.layout.device
        tensors = {name: x.to(device) for name, x in columns(data, _UPDATE).items()}
        metrics: list[dict[str, Metric]] = []

        def loss_fn(batch: PackedBatch, answer: Answer) -> Tensor:
            return self._loss(batch, answer[0], tensors, metrics)

        rate = engine.lr
        norm = engine.train(self._cut(data, engine), loss_fn)
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

    def _cut(self, data: DataProto, engine: TrainEngine) -> list[PackedBatch]:
        budget = self.config.ppo_max_token_len_per_gpu
        return cut_micro_batches(data, self.config.model, budget, _BUDGET_KEY, engine.layout)


def _new_head(name: str, shape: torch.Size) -> Tensor:
    return torch.zeros(shape) if name.split(".")[0] in ("score", "classifier") else nothing_new(name, shape)
