"""Prompts from files: one row is a prompt with what its reward needs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from transformers import PreTrainedTokenizerBase

from .config import DataConfig
from .errors import DataError

logger = logging.getLogger(__name__)

Row = dict[str, Any]


class PromptDataset(torch.utils.data.Dataset[Row]):
    """Rows of JSONL or Parquet files, tokenised.

    A row's prompt is a string (taken as it is) or a list of chat messages (rendered by the tokenizer's
    chat template). Columns `data_source`, `reward_model` (`{"ground_truth": ...}`), `extra_info` and any
    other column reach the reward function unchanged.

    Args:
        files: paths; the ending (`.jsonl`, `.parquet`) says how to read one.
        tokenizer: encodes prompts.
        config: column names and lengths.

    Raises:
        DataError: a file or a row can't be used; the message names file and line.
    """

    def __init__(self, files: Sequence[str], tokenizer: PreTrainedTokenizerBase, config: DataConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.rows: list[Row] = []
        self.filtered = 0
        for file in files:
            for line, row in enumerate(read_rows(Path(file)), 1):
                self._add(row, f"{file}, row {line}")
        if self.filtered:
            longest = config.max_prompt_length
            logger.warning("%d prompts are longer than %d tokens and were left out", self.filtered, longest)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def _add(self, row: Row, where: str) -> None:
        ids = self._encode(row, where)
        if len(ids) > self.config.max_prompt_length:
            if not self.config.filter_overlong_prompts:
                raise DataError(
                    f"{where}: the prompt has {len(ids)} tokens, data.max_prompt_length is "
                    f"{self.config.max_prompt_length}; raise it or set data.filter_overlong_prompts=true"
                )
            self.filtered += 1
            return
        columns = {name: value for name, value in row.items() if name != self.config.prompt_key}
        defaults = {"data_source": "data", "reward_model": {}, "extra_info": {}}
        raw = row[self.config.prompt_key]
        self.rows.append({**defaults, **columns, "raw_prompt": raw, "input_ids": ids})

    def _encode(self, row: Row, where: str) -> list[int]:
        prompt = row.get(self.config.prompt_key)
        if isinstance(prompt, str) and prompt:
            return list(self.tokenizer(prompt)["input_ids"])
        if isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt):
            if not self.tokenizer.chat_template:
                raise DataError(
                    f"{where}: the prompt is a list of messages, but the tokenizer has no chat template; "
                    "give prompts as strings or use a chat model"
                )
            text = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(str(text), add_special_tokens=False)["input_ids"])
        raise DataError(
            f"{where}: column {self.config.prompt_key!r} must be a non-empty string or a list of "
            f"{{role, content}} messages, not {prompt!r}; data.prompt_key names the column"
        )


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of one file as dictionaries.

    Raises:
        DataError: the file is missing, of an unknown kind, or a line is not a JSON object.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}; check data.train_files and data.val_files")
    if path.suffix == ".parquet":
        try:
            yield from pyarrow.parquet.read_table(path).to_pylist()
        except pyarrow.ArrowInvalid as error:
            raise DataError(f"{path} can't be read as Parquet: {error}") from error
    elif path.suffix in {".jsonl", ".json"}:
        yield from _read_jsonl(path)
    else:
        raise DataError(f"{path}: the ending {path.suffix!r} is not one that we read (.jsonl, .parquet)")


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, line {number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(
                    f"{path}, line {number}: a row must be a JSON object, not {line.strip()[:60]!r}"
                )
            yield row


def collate(rows: Sequence[Row], pad_token_id: int) -> dict[str, torch.Tensor | np.ndarray]:
    """Left-pad prompts and gather the other columns.

    Returns:
        `input_ids attention_mask position_ids` int64 `[B, P]`, P the longest prompt of the batch, and an
        object array `[B]` for every other column of any row (None where a row lacks it).
    """
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.full((len(rows), width), pad_token_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        start = width - len(row["input_ids"])
        ids[i, start:] = torch.tensor(row["input_ids"])
        mask[i, start:] = 1
    batch: dict[str, torch.Tensor | np.ndarray] = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
    }
    for name in dict.fromkeys(name for row in rows for name in row if name != "input_ids"):
        column = np.empty(len(rows), dtype=object)
        column[:] = [row.get(name) for row in rows]
        batch[name] = column
    return batch


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
