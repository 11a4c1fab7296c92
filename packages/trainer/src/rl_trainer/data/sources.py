"""Where rows come from: JSON lines, JSON, CSV and Parquet files, `datasets` ids, reasoning-gym tasks."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from ..errors import DataError

Row = dict[str, Any]
GYM_PREFIX = "reasoning_gym/"
LARGEST_FIELD = 1 << 30  # characters of one CSV value


def read_rows(source: str, split: str, gym_size: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Rows of one source, each with the place where it stands.

    Args:
        source: a file (`.jsonl`, `.json`, `.csv`, `.parquet`), `reasoning_gym/<task>`, or a `datasets` id
            (`owner/name`, `owner/name/config`) or local folder.
        split: split of a `datasets` id.
        gym_size: rows made of a reasoning-gym task.
        seed: decides which rows those are.

    Raises:
        DataError: the source is missing or can't be read; the message names file and line.
    """
    check_source("data", source)
    if read := READERS.get(Path(source).suffix.lower()):
        rows = read(Path(source))
    elif source.startswith(GYM_PREFIX):
        rows = enumerate(_read_gym(source.removeprefix(GYM_PREFIX), gym_size, seed), 1)
    else:
        rows = enumerate(_read_datasets(source, split), 1)
    return ((f"{source}, row {number}", row) for number, row in rows)


def check_source(key: str, source: str) -> None:
    """Raise a `DataError` for a file that is not there or has an ending that nobody reads."""
    path, endings = Path(source), ", ".join(READERS)
    if path.suffix.lower() in READERS:
        if not path.is_file():
            raise DataError(f"{key}: there is no file {source}")
    elif path.is_file():
        raise DataError(f"{key}: {source} has the ending {path.suffix!r}, not one that we read ({endings})")
    elif source.startswith(("/", "./", "../", "~")) and not path.is_dir():
        raise DataError(f"{key}: there is no file or folder {source}")


def _read_json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    for number, line in _lines(path):
        if line.strip():
            yield number, _object(_parsed(line, f"{path}, row {number}"), f"{path}, row {number}")


def _read_json(path: Path) -> Iterator[tuple[int, Row]]:
    """An array of objects, or one object per line."""
    text = "".join(line for _, line in _lines(path))
    if not text.lstrip().startswith("["):
        yield from _read_json_lines(path)
        return
    for number, row in enumerate(_parsed(text, str(path)), 1):
        yield number, _object(row, f"{path}, row {number}")


def _read_csv(path: Path) -> Iterator[tuple[int, Row]]:
    """The first line names the columns; values are text."""
    csv.field_size_limit(LARGEST_FIELD)
    reader = csv.DictReader((line for _, line in _lines(path)), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}, line {reader.line_num}: not as many values as the first line names")
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _read_parquet(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        yield from enumerate(pyarrow.parquet.read_table(path).to_pylist(), 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} can't be read as Parquet: {error}") from error


READERS: dict[str, Callable[[Path], Iterator[tuple[int, Row]]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of UTF-8 text, with or without a byte-order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                what = f"byte {line[error.start]:#04x} at place {error.start + 1}"
                raise DataError(
                    f"{path}, line {number}: not UTF-8 ({what}); write the file as UTF-8"
                ) from error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error})") from error


def _object(row: object, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where}: must be a JSON object, not {str(row)[:60]!r}")
    return row


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
