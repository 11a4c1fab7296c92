"""vLLM weight-transfer backend "shm": one shared-memory buffer, filled and loaded bucket by bucket.

Imported by vLLM's factories on first use; see `transfer.register_shm_backend`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import base

from rl_rollout.engines.vllm import private_api
from rl_rollout.errors import RolloutDataError
from rl_rollout.weights.sync import DEFAULT_BUCKET_BYTES

_ALIGN = 64


@dataclass
class ShmInitInfo(base.WeightTransferInitInfo):
    """Where the buffer is."""

    path: str
    nbytes: int


@dataclass
class ShmUpdateInfo(base.WeightTransferUpdateInfo):
    """What the buffer holds now."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    offsets: list[int]


@dataclass
class ShmTrainerInitInfo(base.TrainerInitInfo):
    """`rank` of this trainer process, and the size of the buffer (never below the largest tensor)."""

    backend: ClassVar[str] = "shm"
    bucket_bytes: int = DEFAULT_BUCKET_BYTES


class ShmWeightTransferEngine(base.WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """The engine's side."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Map the buffer."""
        self._buffer: Tensor | None = _map(init_info.path, init_info.nbytes)

    def start_weight_update(self) -> None:
        """Unpack the layers so that they can load a checkpoint's tensors."""
        private_api.begin_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        """Load what the buffer holds. Copies: vLLM keeps pieces until their layer is whole, while the
        sender refills the buffer."""
        if self._buffer is None:
            raise RolloutDataError("the shared buffer is closed: send the handshake again")
        views = _views(self._buffer, update_info)
        model: Any = self.model
        model.load_weights((name, view.clone()) for name, view in views)

    def finish_weight_update(self) -> None:
        """Pack the layers again, the head of a tied model too."""
        private_api.end_layerwise_reload(self.model, self.model_config)
        private_api.repack_output_heads(self.model)

    def shutdown(self) -> None:
        """Unmap the buffer."""
        self._buffer = None


class ShmTrainerTransferEngine(base.TrainerWeightTransferEngine[ShmTrainerInitInfo]):
    """The trainer's side; rank 0 fills the buffer, the other ranks gather along."""

    init_info_cls = ShmTrainerInitInfo
    _buffer: Tensor | None = None

    @classmethod
    def trainer_init(
        cls,
        init_info: ShmTrainerInitInfo,
        *,
        client: base.VLLMWeightSyncClient,
        source: base.WeightSource | None = None,
    ) -> ShmTrainerTransferEngine:
        """Make the buffer, let the engine map it, and take its name away: a killed job leaves nothing."""
        if source is None:
            raise RolloutDataError("the shm backend needs a source of weights")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            largest = max(_nbytes(m.shape, m.dtype) for m in source.metadata())
            nbytes = max(init_info.bucket_bytes, largest)
            folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
            handle, path = tempfile.mkstemp(prefix="rlrollout-weights-", dir=folder)
            try:
                os.ftruncate(handle, nbytes)
                engine._buffer = _map(path, nbytes)
                client.init_weight_transfer_engine({"path": path, "nbytes": nbytes})
            finally:
                os.close(handle)
                os.unlink(path)
        return engine

    @torch.no_grad()
    def send_weights(self) -> None:
        """One update: every rank iterates the source, rank 0 copies and announces bucket by bucket."""
        if self.is_sender:
            self.client.start_weight_update()
        self._bucket = _Bucket()
        for name, tensor in self.source or ():
            if self._buffer is not None:
                self._put(self._buffer, name, tensor)
        if self.is_sender:
            self._flush()
            self.client.finish_weight_update()

    def _put(self, buffer: Tensor, name: str, tensor: Tensor) -> None:
        nbytes = _nbytes(tensor.shape, tensor.dtype)
        if self._bucket.used + nbytes > buffer.numel():
            self._flush()
        _view(buffer, self._bucket.used, tensor.dtype, list(tensor.shape)).copy_(tensor)
        self._bucket.add(name, tensor, nbytes)

    def _flush(self) -> None:
        if self._bucket.names:
            self.client.update_weights(self._bucket.announcement())
        self._bucket = _Bucket()

    def shutdown(self) -> None:
        """Unmap the buffer."""
        self._buffer = None


@dataclass
class _Bucket:
    """What has been copied into the buffer since the last announcement."""

    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    used: int = 0

    def add(self, name: str, tensor: Tensor, nbytes: int) -> None:
        self.names.append(name)
        self.dtypes.append(str(tensor.dtype).removeprefix("torch."))
        self.shapes.append(list(tensor.shape))
        self.offsets.append(self.used)
        self.used += nbytes

    def announcement(self) -> dict[str, Any]:
        return {k: list(getattr(self, k)) for k in ("names", "dtypes", "shapes", "offsets")}


def _map(path: str, nbytes: int) -> Tensor:
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def _nbytes(shape: Any, dtype: torch.dtype) -> int:
    """Bytes of a tensor, rounded up so that the next one is aligned."""
    return -(-torch.Size(shape).numel() * dtype.itemsize // _ALIGN) * _ALIGN


def _view(buffer: Tensor, offset: int, dtype: torch.dtype, shape: list[int]) -> Tensor:
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    return buffer[offset : offset + nbytes].view(dtype).view(shape)


def _views(buffer: Tensor, info: ShmUpdateInfo) -> Iterator[tuple[str, Tensor]]:
    for name, dtype, shape, offset in zip(info.names, info.dtypes, info.shapes, info.offsets, strict=True):
        yield name, _view(buffer, offset, getattr(torch, dtype), shape)
