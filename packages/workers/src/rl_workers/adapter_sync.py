"""Hand-over of an adapted model to its engine: the adapter alone where the engine takes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rl_rollout import BaseRollout, FSDPVLLMShardingManager
from rl_rollout.weight_sync import gather_named
from rl_workers.lora import adapter_weights, base_weights, merged_weights


@runtime_checkable
class TakesAdapter(Protocol):
    """An engine that computes with an adapter beside its weights."""

    def load_adapter(self, tensors: Mapping[str, Tensor], peft_config: Mapping[str, Any]) -> None:
        """Use this adapter from the next request on."""


class AdapterShardingManager(FSDPVLLMShardingManager):
    """Pushes the base weights once, then the adapter alone; merged weights to an engine without adapters."""

    def __init__(self, module: nn.Module, rollout: BaseRollout, peft_config: Mapping[str, Any]) -> None:
        super().__init__(module, rollout)
        self.peft_config = peft_config
        self._base_pushed = rollout.config.load_format != "dummy"

    def push_weights(self) -> None:
        """Stream what changed since the last push; collective over the module's ranks."""
        dtype = getattr(torch, self.rollout.config.dtype)
        if not self.rollout.config.lora_rank or not isinstance(self.rollout, TakesAdapter):
            self.rollout.update_weights(gather_named(merged_weights(self.module), dtype, self.bucket_bytes))
            return
        if not self._base_pushed:
            self.rollout.update_weights(gather_named(base_weights(self.module), dtype, self.bucket_bytes))
            self._base_pushed = True
        adapter = dict(gather_named(adapter_weights(self.module), torch.float32, self.bucket_bytes))
        self.rollout.load_adapter(adapter, self.peft_config)
