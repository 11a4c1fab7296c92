"""Prompts from files: one row is a prompt with what its reward needs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rl_protocol import DataProto
from rl_rollout import encode_chat
from rl_rollout.errors import ChatTemplateError

from ..config.tree import DataConfig
from ..errors import DataError
from .rows import checked
from .sources import Row, read_rows

logger = logging.getLogger(__name__)


class PromptDataset(torch.utils.data.Dataset[Row]):
    """Rows of files, `datasets` ids or reasoning-gym tasks, tokenised.

    A row's prompt is a string (taken as it is, control tokens in it too) or a list of chat messages (rendered
    by the tokenizer's chat template, which alone writes control tokens). Columns `data_source`,
    `reward_model` (`{"ground_truth": ...}`), `extra_info` and any other column reach the reward function; see
    `rows.checked` for what they may hold.

    Args:
        sources: what to read; see `sources.read_rows`.
        tokenizer: encodes prompts.
        config: column names and lengths.
        split: split of a `datasets` id.
        seed: decides the rows of a reasoning-gym task.

    Raises:
        DataError: a source or a row can't be used; the message names file and row.
    """

    def __init__(
        self,
        sources: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        config: DataConfig,
        split: str = "train",
        seed: int = 0,
    ) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.rows: list[Row] = []
        self.filtered = 0
        for source in sources:
            for where, row in read_rows(source, split, config.reasoning_gym_size, seed):
                self._add(row, where)
        if self.filtered:
            longest = config.max_prompt_length
            logger.warning("%d prompts are longer than %d tokens and were left out", self.filtered, longest)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt; 0 without prompts."""
        return max((len(row["input_ids"]) for row in self.rows), default=0)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def _add(self, row: Row, where: str) -> None:
        columns = checked(row, self.config.prompt_key, where)
        ids = self._encode(columns["raw_prompt"], where)
        if len(ids) > self.config.max_prompt_length:
            if not self.config.filter_overlong_prompts:
                raise DataError(
                    f"{where}: the prompt has {len(ids)} tokens, data.max_prompt_length is "
                    f"{self.config.max_prompt_length}; raise it or set data.filter_overlong_prompts=true"
                )
            self.filtered += 1
            return
        self.rows.append({**columns, "input_ids": ids})

    def _encode(self, prompt: Any, where: str) -> list[int]:
        try:
            written = isinstance(prompt, str)
            ids = self.tokenizer(prompt)["input_ids"] if written else encode_chat(self.tokenizer, prompt)
        except ChatTemplateError as error:
            raise DataError(f"{where}: {error}") from error
        if not ids:
            raise DataError(f"{where}: the prompt has no token")
        return list(ids)


def collate(rows: Sequence[Row], pad_token_id: int, width: int = 0) -> dict[str, torch.Tensor | np.ndarray]:
    """Left-pad prompts and gather the other columns.

    Args:
        rows: of a `PromptDataset`.
        pad_token_id: what is put left of a prompt.
        width: P; 0: the longest prompt of these rows.

    Returns:
        `input_ids` int64 and `attention_mask` bool, `[B, P]`, and an object array `[B]` for every other
        column of any row (None where a row lacks it).
    """
    width = width or max(len(row["input_ids"]) for row in rows)
    ids = torch.full((len(rows), width), pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for i, row in enumerate(rows):
        start = width - len(row["input_ids"])
        ids[i, start:] = torch.tensor(row["input_ids"])
        mask[i, start:] = True
    batch: dict[str, torch.Tensor | np.ndarray] = {
        "input_ids": ids,
        "attention_mask": mask,
    }
    for name in dict.fromkeys(name for row in rows for name in row if name != "input_ids"):
        column = np.empty(len(rows), dtype=object)
        column[:] = [row.get(name) for row in rows]
        batch[name] = column
    return batch


def padded_collate(
    tokenizer: PreTrainedTokenizerBase, datasets: Sequence[PromptDataset | None]
) -> Callable[[Sequence[Row]], dict[str, torch.Tensor | np.ndarray]]:
    """`collate` with the tokenizer's pad token and one width for all prompts of some datasets."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    width = max(data.longest for data in datasets if data is not None)
    return partial(collate, pad_token_id=next((i for i in ids if i is not None), 0), width=width)


def to_prompts(collated: dict[str, Any], names: Sequence[str]) -> DataProto:
    """Collated rows as prompts, one row each, with `names` as `uid`."""
    return DataProto.from_single_dict({**collated, "uid": np.array(names, dtype=object)})
