"""The hand-over between training and generation: weights in, memory back, rows to the right ranks."""

from __future__ import annotations

from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn

from rl_protocol import DataProto
from rl_rollout.base import BaseRollout
from rl_rollout.weights.host_memory import HostRoom
from rl_rollout.weights.lora import (
    adapter_config,
    adapter_tensors,
    has_adapter,
    stream_base_weights,
    stream_merged_weights,
)
from rl_rollout.weights.sync import DEFAULT_BUCKET_BYTES, gather_named, named_weights


class BaseShardingManager:
    """Context around generation. This one moves nothing: trainer and engine share their weights."""

    def __enter__(self) -> BaseShardingManager:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None

    def preprocess_data(self, data: DataProto) -> DataProto:
        """Rows as the engine's ranks need them."""
        return data

    def postprocess_data(self, data: DataProto) -> DataProto:
        """Rows as the dispatcher expects them back."""
        return data


class FSDPVLLMShardingManager(BaseShardingManager):
    """Pushes an FSDP2 (or plain) module's weights into an engine on enter, lets it sleep on exit.

    Under mesh dispatch the ranks of a tensor-parallel group receive the same rows and data passes through.
    Where every rank receives rows of its own (plain `DP_COMPUTE_PROTO`), give the group as `tp_group`:
    rows are gathered within it before generation and cut again afterwards.
    """

    def __init__(
        self,
        module: nn.Module,
        rollout: BaseRollout,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        tp_group: dist.ProcessGroup | None = None,
    ) -> None:
        self.module = module
        self.rollout = rollout
        self.bucket_bytes = bucket_bytes
        self.tp_group = tp_group
        self.room = HostRoom()
        self._rows: list[int] = []
        self._base_pushed = False

    def __enter__(self) -> FSDPVLLMShardingManager:
        self.rollout.wake("weights")
        self.push_weights()
        self.rollout.wake("kv_cache")
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.rollout.sleep()

    def push_weights(self) -> None:
        """Put the module's present weights into the engine; collective over the module's ranks.

        A LoRA module goes as base (once) and adapter where the engine was built for adapters
        (`lora_rank`), else with its adapter merged in.
        """
        how = getattr(torch, self.rollout.config.dtype), self.bucket_bytes, self.room
        if not has_adapter(self.module):
            self.rollout.update_weights(gather_named(named_weights(self.module), *how))
        elif not self.rollout.config.lora_rank:
            self.rollout.update_weights(stream_merged_weights(self.module, *how))
        else:
            if not self._base_pushed:
                self.rollout.update_weights(stream_base_weights(self.module, *how))
                self._base_pushed = True
            self.rollout.load_adapter(adapter_tensors(self.module), adapter_config(self.module))

    def preprocess_data(self, data: DataProto) -> DataProto:
        """With `tp_group`: the rows of all its ranks, in rank order, the same on each."""
        if self.tp_group is None:
            return data
        parts: list[DataProto] = [data] * dist.get_world_size(self.tp_group)
        dist.all_gather_object(parts, data, group=self.tp_group)
        self._rows = [len(part) for part in parts]
        return DataProto.concat(parts)

    def postprocess_data(self, data: DataProto) -> DataProto:
        """With `tp_group`: this rank's own rows again."""
        if self.tp_group is None:
            return data
        rank = dist.get_rank(self.tp_group)
        start = sum(self._rows[:rank])
        return data.slice(start, start + self._rows[rank])
