"""How `meta_info` merges: the rules are declared here and nowhere else.

* `metrics` and `timing` are results of a call. `timing` becomes a list with one entry per part; `metrics`
  become one dict of lists, by name: `{"loss": [0.5, 0.6]}`, as verl's users expect. Metrics that are no dicts
  are listed like timings. What is a list already is joined, so that merging is associative.
* Any other key must have equal values (by value, NaN equals NaN) wherever it appears. Keys that only
  some parts hold survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_protocol.equality import values_equal
from rl_protocol.errors import MetaConflictError, MissingColumnError

LISTED_META_KEYS = frozenset({"metrics", "timing"})


def _entries(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _merged(key: str, values: Sequence[Any]) -> Any:
    """The values that parts hold under a listed key, as one."""
    entries = [entry for value in values for entry in _entries(value)]
    if key != "metrics" or not all(isinstance(entry, Mapping) for entry in entries):
        return entries
    merged: dict[str, list[Any]] = {}
    for entry in entries:
        for name, value in entry.items():
            merged.setdefault(name, []).extend(_entries(value))
    return merged


def _conflict(key: str, left: Any, right: Any) -> MetaConflictError:
    return MetaConflictError(
        f"Conflicting values for meta_info key {key!r}: {left!r} in one part and {right!r} in another. Only "
        f"{sorted(LISTED_META_KEYS)} may differ; drop the key or make the values equal before merging."
    )


def concat_meta(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the `meta_info` of parts that are stacked row on row."""
    merged: dict[str, Any] = {}
    listed: dict[str, list[Any]] = {}
    for part in parts:
        for key, value in part.items():
            if key in LISTED_META_KEYS:
                listed.setdefault(key, []).append(value)
            elif key not in merged:
                merged[key] = value
            elif not values_equal(merged[key], value):
                raise _conflict(key, merged[key], value)
    return merged | {key: _merged(key, values) for key, values in listed.items()}


def union_meta(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the `meta_info` of two batches that hold columns of the same rows."""
    merged = dict(left)
    for key, value in right.items():
        if key not in merged or values_equal(merged[key], value):
            merged.setdefault(key, value)
        elif key in LISTED_META_KEYS:
            merged[key] = _merged(key, [merged[key], value])
        else:
            raise _conflict(key, merged[key], value)
    return merged


def pick_meta(meta: Mapping[str, Any], keys: Iterable[str] | None) -> dict[str, Any]:
    """The entries named by `keys`, or all of them if `keys` is None."""
    if keys is None:
        return dict(meta)
    wanted = list(keys)
    missing = [key for key in wanted if key not in meta]
    if missing:
        raise MissingColumnError(f"meta_info has no key {missing}; it holds {sorted(meta)}.")
    return {key: meta[key] for key in wanted}
