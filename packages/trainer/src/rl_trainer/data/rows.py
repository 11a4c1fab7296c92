"""What a row of the data must be, whatever file it comes from."""

from __future__ import annotations

import datetime
import json
from typing import Any

from ..errors import DataError
from .sources import Row

# Columns of a batch: a dataset's own of the same name are kept apart from them, and reach the reward as well.
RESERVED = {
    *("input_ids", "attention_mask", "position_ids", "raw_prompt", "uid", "seeds", "sampling"),
    *("prompts", "responses", "response_mask", "response_lengths", "finish_reason", "num_actions"),
    *("num_turns", "agent_error", "rollout_log_probs", "old_log_probs", "ref_log_prob", "values"),
    *("scores", "raw_scores", "rm_scores", "token_level_rewards", "advantages", "returns", "extras"),
}
OWN = "data/"


def checked(row: Row, prompt_key: str, where: str) -> Row:
    """A row as batches hold it: `raw_prompt`, `data_source`, `reward_model`, `extra_info`, other columns.

    Values that are None count as missing in messages, in `reward_model` and in `extra_info`, since Parquet
    fills structs up with them; the latter two may be JSON objects written as text. Dates become ISO text.
    A column with a name in `RESERVED` is kept as `data/<name>`.

    Raises:
        DataError: the row can't be used; the message names `where`, the column and the rule.
    """
    if prompt_key not in row:
        raise DataError(
            f"{where}: there is no column {prompt_key!r}; data.prompt_key names the prompt's column"
        )
    plain = {name: _plain(value, f"{where}, column {name!r}") for name, value in row.items()}
    source = plain.pop("data_source", None)
    if not isinstance(source, str | None):
        raise DataError(f"{where}: column 'data_source' must be text, not {source!r}")
    known = {
        "data_source": source or "data",
        "reward_model": _mapping(plain.pop("reward_model", None), f"{where}: column 'reward_model'"),
        "extra_info": _mapping(plain.pop("extra_info", None), f"{where}: column 'extra_info'"),
        "raw_prompt": _prompt(plain.pop(prompt_key), prompt_key, where),
    }
    return known | {OWN + name if name in RESERVED | known.keys() else name: v for name, v in plain.items()}


def _plain(value: Any, where: str) -> Any:
    """A value that every process and file can hold."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: character {error.start} is half of a surrogate pair, which is no text; write the "
                "character whole or leave it out"
            ) from error
        return value
    if isinstance(value, dict):
        return {_plain(str(key), where): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


def _prompt(prompt: Any, key: str, where: str) -> Any:
    if isinstance(prompt, str) and prompt:
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise DataError(
            f"{where}: column {key!r} must be a non-empty string or a list of {{role, content}} messages, "
            f"not {str(prompt)[:60]!r}; data.prompt_key names the column"
        )
    return [_message(message, f"{where}, message {i}") for i, message in enumerate(prompt, 1)]


def _message(message: Any, where: str) -> dict[str, Any]:
    found = _without_nulls(message)
    if not isinstance(found, dict) or not isinstance(found.get("role"), str):
        raise DataError(f"{where}: must be {{role, content}}, not {str(message)[:60]!r}")
    if "content" not in found and "tool_calls" not in found:
        raise DataError(f"{where}: a message of the role {found['role']!r} has no content")
    if not isinstance(found.get("content", ""), str | list):
        raise DataError(f"{where}: content must be text or a list of parts, not {found['content']!r}")
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} must be an object, or one as JSON text, not {value[:60]!r}") from error
    if value is not None and not isinstance(value, dict):
        raise DataError(f"{where} must be an object, not {str(value)[:60]!r}")
    return {key: item for key, item in (value or {}).items() if item is not None}
