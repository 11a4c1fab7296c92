"""Where rows come from: JSONL and Parquet files, `datasets` ids, reasoning-gym tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import DataError

Row = dict[str, Any]
GYM_PREFIX = "reasoning_gym/"
FILE_ENDINGS = (".jsonl", ".json", ".parquet")


def read_rows(source: str, split: str, gym_size: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Rows of one source, each with the place where it stands.

    Args:
        source: a file (`.jsonl`, `.parquet`), `reasoning_gym/<task>`, or a `datasets` id (`owner/name`,
            `owner/name/config`) or local folder.
        split: split of a `datasets` id.
        gym_size: rows made of a reasoning-gym task.
        seed: decides which rows those are.

    Raises:
        DataError: the source is missing or can't be read; the message names file and line.
    """
    check_source("data", source)
    if source.endswith(FILE_ENDINGS):
        rows = _read_file(Path(source))
    elif source.startswith(GYM_PREFIX):
        rows = enumerate(_read_gym(source.removeprefix(GYM_PREFIX), gym_size, seed), 1)
    else:
        rows = enumerate(_read_datasets(source, split), 1)
    return ((f"{source}, row {number}", row) for number, row in rows)


def check_source(key: str, source: str) -> None:
    """Raise a `DataError` for a file that is not there or has an ending that nobody reads."""
    path = Path(source)
    if source.endswith(FILE_ENDINGS) and not path.is_file():
        raise DataError(f"{key}: there is no file {source}")
    if path.is_file() and not source.endswith(FILE_ENDINGS):
        endings = ", ".join(FILE_ENDINGS)
        raise DataError(f"{key}: {source} has the ending {path.suffix!r}, not one that we read ({endings})")


def _read_file(path: Path) -> Iterator[tuple[int, Row]]:
    if path.suffix == ".parquet":
        try:
            yield from enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1)
        except pyarrow.ArrowInvalid as error:
            raise DataError(f"{path} can't be read as Parquet: {error}") from error
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, row {number}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f"{path}, row {number}: must be a JSON object, not {line.strip()[:60]!r}")
            yield number, row


def _read_gym(task: str, size: int, seed: int) -> Iterator[Row]:
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError(f"{GYM_PREFIX}{task} needs a package: pip install 'rl-trainer[tasks]'") from error
    try:
        entries = reasoning_gym.create_dataset(task, size=size, seed=seed)
    except ValueError as error:
        raise DataError(f"{GYM_PREFIX}{task}: {error}") from error
    for entry in entries:
        yield {
            "data_source": GYM_PREFIX + task,
            "prompt": [{"role": "user", "content": entry["question"]}],
            "reward_model": {"ground_truth": entry["answer"]},
            "extra_info": {"entry": dict(entry)},
        }


def _read_datasets(source: str, split: str) -> Iterator[Row]:
    import datasets

    owner_and_name, config = source, None
    if not Path(source).exists() and source.count("/") == 2:
        owner_and_name, _, config = source.rpartition("/")
    try:
        rows = datasets.load_dataset(owner_and_name, config, split=split)
    except Exception as error:  # the hub client, the file system and the loader each have their own
        raise DataError(f"{source} (split {split}) can't be loaded: {error}") from error
    for row in rows:
        yield dict(row)
