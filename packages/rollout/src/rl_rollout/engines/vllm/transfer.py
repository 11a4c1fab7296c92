"""Weights to an engine in another process, through vLLM's own weight-transfer lifecycle.

The engine's side is `vLLMRollout.weight_sync`, reached however the processes talk (a Ray actor's method,
a pipe); the trainer's is `WeightSender`. Transport is one of vLLM's registered backends: "ipc" and "nccl"
between GPUs, and "shm", ours, between processes of one machine without any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from rl_rollout.weights.sync import DEFAULT_BUCKET_BYTES, NamedTensor, named_weights, stream_weights

SyncCall = Callable[[str, dict[str, Any]], None]
_SHM_MODULE = "rl_rollout.engines.vllm.shm"


def register_shm_backend() -> None:
    """Make the backend "shm" known to vLLM in this process. Registering twice is fine."""
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )

    with contextlib.suppress(ValueError):  # registered before
        WeightTransferEngineFactory.register_engine("shm", _SHM_MODULE, "ShmWeightTransferEngine")
        WeightTransferTrainerFactory.register_engine("shm", _SHM_MODULE, "ShmTrainerTransferEngine")


class SyncClient:
    """vLLM's trainer-side client over one function: `call(step, payload)` runs
    `vLLMRollout.weight_sync(step, payload)` in the engine's process and returns when it is done."""

    def __init__(self, call: SyncCall) -> None:
        self._call = call

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Handshake."""
        self._call("init", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin an update."""
        self._call("start", {})

    def update_weights(self, update_info: Any) -> None:
        """Announce a piece."""
        self._call("update", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update."""
        self._call("finish", {"weight_version": weight_version})


class WeightSender:
    """Sends an FSDP2 (or plain) module's weights to an engine in another process.

    Built and used on every trainer rank; `call` is used on rank 0 alone. `init_info` is the backend's
    `TrainerInitInfo`: `ShmTrainerInitInfo` here, `NCCLTrainerInitInfo` or `IPCTrainerInitInfo` from vLLM.
    """

    def __init__(
        self,
        module: nn.Module,
        init_info: Any,
        call: SyncCall,
        dtype: torch.dtype,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    ) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        register_shm_backend()
        self._engine = WeightTransferTrainerFactory.trainer_init(
            init_info, client=SyncClient(call), source=_make_source(module, dtype, bucket_bytes)
        )

    def send(self) -> None:
        """Push the present weights; every rank takes part."""
        self._engine.send_weights()

    def close(self) -> None:
        """Let the transport go."""
        self._engine.shutdown()


def _make_source(module: nn.Module, dtype: torch.dtype, bucket_bytes: int) -> Any:
    """vLLM's view of the module, cast before it is gathered."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class ShardedSource(WeightSource):
        def metadata(self) -> list[ParamMeta]:
            return [
                ParamMeta(name, dtype if p.is_floating_point() else p.dtype, tuple(p.shape))
                for name, p in named_weights(module)
            ]

        def __iter__(self) -> Iterator[NamedTensor]:
            return stream_weights(module, dtype, bucket_bytes)

    return ShardedSource()
