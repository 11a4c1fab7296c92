"""One step's rows: what lies with the workers, and the little that the driver makes or reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from rl_algos import place_on_last_token
from rl_protocol import DataProto, DataProtoFuture

MODEL_COLUMNS = ("input_ids", "attention_mask", "position_ids")
LOG_PROB_COLUMNS = (*MODEL_COLUMNS, "response_mask")


@dataclass
class StepBatch:
    """The same rows in the same order, on both sides.

    `batch[name]` is a tensor on the driver: one that it made (`put`), else one of the workers', which comes
    here the first time it is asked for. Most stages get by with numbers per row: `prompt_lengths`,
    `response_lengths` and `num_actions` (tokens that the policy chose) are there from the start, `scores`
    from the rewards on; a column per token costs as much as it has tokens.

    Attributes:
        remote: the rows as the workers hold them.
        local: the prompts' object columns, and tensors that the driver made.
        prompts: what was sampled from, one row per prompt.
        seen: columns of the workers that the driver has read.
    """

    remote: DataProtoFuture
    local: DataProto
    prompts: DataProto
    seen: dict[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.local)

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self.made:
            return self.made[key]
        if key not in self.seen:
            self.fetch(key)
        return self.seen[key]

    @staticmethod
    def concat(parts: Sequence[StepBatch]) -> StepBatch:
        """Rows of several batches, one after the other."""
        shared = set.intersection(*(set(part.seen) for part in parts))
        return StepBatch(
            DataProtoFuture.concat([part.remote for part in parts]),
            DataProto.concat([part.local for part in parts]),
            DataProto.concat([part.prompts for part in parts]),
            {key: torch.cat([part.seen[key] for part in parts]) for key in sorted(shared)},
        )

    @property
    def made(self) -> dict[str, torch.Tensor]:
        """Tensors that the driver made; they go before the workers' of the same name."""
        return tensors_of(self.local)

    @property
    def uids(self) -> list[str]:
        """The prompt of each row."""
        return list(self.local.non_tensor_batch["uid"])

    @property
    def num_actions(self) -> torch.Tensor:
        """Tokens of each row that are trained on, `[B]` int64."""
        return self["response_mask"].sum(1) if "response_mask" in self.made else self["num_actions"]

    @property
    def action_mask(self) -> torch.Tensor:
        """`response_mask` with its columns moved to the left, `[B, max actions]` bool.

        Holds what matters to anything that only counts tokens, and needs no column from the workers.
        """
        counts = self.num_actions
        return torch.arange(int(counts.max()) if len(counts) else 0) < counts[:, None]

    @property
    def token_level_rewards(self) -> torch.Tensor:
        """`[B, R]`: as a stage put them, else each row's score on the last token that the policy chose."""
        if "token_level_rewards" in self.made:
            return self.made["token_level_rewards"]
        return place_on_last_token(self["scores"], self["response_mask"])

    def put(self, **tensors: torch.Tensor) -> None:
        """Keep tensors on the driver; a name that is there already gets the new value."""
        self.local = DataProto.from_dict(self.made | tensors, self.local.non_tensor_batch)

    def fetch(self, *keys: str) -> None:
        """Bring columns from the workers to the driver, in one go."""
        found: DataProto = self.remote.select(list(keys), [], []).get()
        self.seen = self.seen | tensors_of(found)

    def add_remote(self, made: DataProtoFuture) -> None:
        """Take columns that the workers made, where they are."""
        self.remote = self.remote.union(made.select(meta_info_keys=[]))

    def rows(self, index: Any) -> StepBatch:
        """Some of the rows, in the order of `index`."""
        seen = {key: column[index] for key, column in self.seen.items()}
        return StepBatch(self.remote[index], self.local[index], self.prompts, seen)

    def to_workers(
        self, columns: Sequence[str], meta_info: Mapping[str, Any], objects: Sequence[str] = ("uid",)
    ) -> DataProtoFuture:
        """Columns for a call; only those that the driver made travel from here."""
        mine = self.local.select([name for name in columns if name in self.made], [], [])
        mine.meta_info = dict(meta_info)
        theirs = [name for name in columns if name not in self.made]
        return self.remote.select(theirs, list(objects), []).union(mine)


def tensors_of(data: DataProto) -> dict[str, torch.Tensor]:
    """The tensors of a batch."""
    return cast(dict[str, torch.Tensor], dict(data.batch.items()) if data.batch is not None else {})
