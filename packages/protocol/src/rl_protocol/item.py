"""One row of a batch."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict


class DataProtoItem:
    """One row of a batch: what `batch[3]` gives."""

    def __init__(
        self, batch: TensorDict | None, non_tensor_batch: dict[str, Any], meta_info: dict[str, Any]
    ) -> None:
        self.batch = batch
        self.non_tensor_batch = non_tensor_batch
        self.meta_info = meta_info
