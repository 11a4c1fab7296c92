"""One step's rows, on both sides: what stays with the workers, and what the driver reads and makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from rl_protocol import DataProto, DataProtoFuture

MODEL_COLUMNS = ("input_ids", "attention_mask", "position_ids")


@dataclass
class StepBatch:
    """The same rows in the same order, twice.

    Attributes:
        remote: the rows as the workers hold them; nothing of it is on the driver.
        local: ids, lengths, masks, scores and advantages on the driver.
        prompts: what was sampled from, on the driver.
    """

    remote: DataProtoFuture
    local: DataProto
    prompts: DataProto

    def __len__(self) -> int:
        return len(self.local)

    def __getitem__(self, key: str) -> torch.Tensor:
        """A tensor that the driver holds."""
        return self.tensors[key]

    @staticmethod
    def concat(parts: Sequence[StepBatch]) -> StepBatch:
        """Rows of several batches, one after the other."""
        return StepBatch(
            DataProtoFuture.concat([part.remote for part in parts]),
            DataProto.concat([part.local for part in parts]),
            DataProto.concat([part.prompts for part in parts]),
        )

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor that the driver holds."""
        return tensors_of(self.local)

    @property
    def uids(self) -> list[str]:
        """The prompt of each row."""
        return list(self.local.non_tensor_batch["uid"])

    def put(self, **tensors: torch.Tensor) -> None:
        """Keep tensors on the driver; a name that is there already gets the new value."""
        self.local = DataProto.from_dict(self.tensors | tensors, self.local.non_tensor_batch)

    def fetch(self, *keys: str) -> None:
        """Bring columns from the workers to the driver."""
        found: DataProto = self.remote.select(list(keys), [], []).get()
        self.put(**tensors_of(found))

    def add_remote(self, made: DataProtoFuture) -> None:
        """Take columns that the workers made, where they are."""
        self.remote = self.remote.union(made.select(meta_info_keys=[]))

    def rows(self, index: Any) -> StepBatch:
        """Some of the rows, in the order of `index`."""
        return StepBatch(self.remote[index], self.local[index], self.prompts[index])

    def to_workers(
        self,
        remote: Sequence[str],
        local: Sequence[str],
        meta_info: Mapping[str, Any],
        objects: Sequence[str] = ("uid",),
    ) -> DataProtoFuture:
        """Columns that the workers hold together with columns of the driver."""
        mine = self.local.select(list(local), list(objects), [])
        mine.meta_info = dict(meta_info)
        return self.remote.select(list(remote), [], []).union(mine)


def tensors_of(data: DataProto) -> dict[str, torch.Tensor]:
    """The tensors of a batch."""
    return cast(dict[str, torch.Tensor], dict(data.batch.items()) if data.batch is not None else {})


def response_lengths(batch: StepBatch) -> torch.Tensor:
    """Tokens of each response, trainable or not, `[B]` int64."""
    return batch["attention_mask"][:, -batch["responses"].shape[1] :].sum(1)


def prompt_lengths(batch: StepBatch) -> torch.Tensor:
    """Tokens of each prompt, `[B]` int64."""
    return batch["attention_mask"][:, : -batch["responses"].shape[1]].sum(1)
