"""A run's folder as one reads it: numbers, configuration, samples, machine; damaged lines left out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ..errors import DataError
from .tracking import read_json_lines

Line = dict[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What a run wrote.

    Args:
        folder: the run's folder.
        name: what the run is called.
    """

    folder: Path
    name: str

    @cached_property
    def lines(self) -> list[Line]:
        """Numbers of each step, oldest first; a number that was not finite is left out."""
        found = {
            line["step"]: line for line in read_json_lines(self.folder / "metrics.jsonl") if "step" in line
        }
        return [{k: v for k, v in found[step].items() if v is not None} for step in sorted(found)]

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration by dotted key; empty where there is none."""
        path = self.folder / "config.yaml"
        return _flat(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}

    @cached_property
    def about(self) -> dict[str, Any]:
        """Versions, machine and data of the run (`about.json`); empty where there is none."""
        path = self.folder / "about.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def series(self, key: str) -> list[tuple[int, float]]:
        """A metric by step."""
        return [(line["step"], line[key]) for line in self.lines if key in line]

    def keys(self, prefix: str) -> list[str]:
        """Names of the metrics that start so."""
        return sorted({key for line in self.lines for key in line if key.startswith(prefix)})

    def total(self, key: str) -> float:
        """A metric's sum over the steps."""
        return float(sum(line.get(key, 0.0) for line in self.lines))

    @cached_property
    def samples(self) -> list[tuple[int, list[Line]]]:
        """Step and greedy samples of the first validation and of the last."""
        numbered = {
            int(file.stem.rpartition("_")[2]): file
            for file in (self.folder / "generations").glob("step_*.jsonl")
            if file.stem.rpartition("_")[2].isdigit()
        }
        ends = sorted({min(numbered), max(numbered)}) if numbered else []
        return [
            (step, [row for row in read_json_lines(numbered[step]) if row.get("greedy")]) for step in ends
        ]


def open_run(folder: Path) -> RunFiles:
    """A run with at least one line of numbers.

    Raises:
        DataError: the folder holds no metrics.
    """
    run = RunFiles(folder, folder.resolve().name)
    if not run.lines:
        raise DataError(f"{folder} holds no metrics.jsonl with a finished step: is it the folder of a run?")
    return run


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        leaves |= _flat(value, path + ".") if isinstance(value, dict) and value else {path: value}
    return leaves
