"""How `meta_info` merges: the rules are declared here and nowhere else.

* `metrics` and `timing` are results of a call. They become lists with one entry per part; an entry that
  is already a list is joined, so that merging is associative.
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


def _conflict(key: str, left: Any, right: Any) -> MetaConflictError:
    return MetaConflictError(
        f"meta_info[{key!r}] differs between parts: {left!r} and {right!r}. Only "
        f"{sorted(LISTED_META_KEYS)} may differ; drop the key or make the values equal before merging."
    )


def concat_meta(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the `meta_info` of parts that are stacked row on row."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key in LISTED_META_KEYS:
                merged.setdefault(key, []).extend(_entries(value))
            elif key not in merged:
                merged[key] = value
            elif not values_equal(merged[key], value):
                raise _conflict(key, merged[key], value)
    return merged


def union_meta(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the `meta_info` of two batches that hold columns of the same rows."""
    merged = dict(left)
    for key, value in right.items():
        if key not in merged or values_equal(merged[key], value):
            merged.setdefault(key, value)
        elif key in LISTED_META_KEYS:
            merged[key] = _entries(merged[key]) + _entries(value)
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
