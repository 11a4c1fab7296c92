"""Rows that are computed together and looked at after each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_rollout.batch.generation import Completion


class GrowingRows:
    """Rows under way, by key.

    Args:
        keys: of the rows, in the order of the completions.
        growth: gives all rows, always the same objects, after each token.
    """

    def __init__(self, keys: Sequence[str], growth: Iterator[list[Completion]]) -> None:
        self._growth = growth
        self._keys, self._rows = list(keys), dict[str, Completion]()
        self._open = set(keys)

    @property
    def is_done(self) -> bool:
        """Whether no row is left to be computed."""
        return not self._open

    def step(self) -> dict[str, Completion]:
        """One more token for each; the rows that are finished by it."""
        self._rows = dict(zip(self._keys, next(self._growth), strict=True))
        done = {key: row for key, row in self._rows.items() if key in self._open and row.finish_reason}
        self._open -= set(done)
        return done

    def cut(self, keys: Sequence[str]) -> dict[str, Completion]:
        """End rows with the tokens they have."""
        ended = [key for key in keys if key in self._open]
        self._open -= set(ended)
        cut = {key: self._rows[key] for key in ended if key in self._rows}
        for row in cut.values():
            row.finish_reason = "abort"
        return cut
