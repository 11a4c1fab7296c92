"""Rows of a whole batch: taken, cut into pieces, drawn as mini-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rl_protocol.contents import Contents
from rl_protocol.rows import RowIndex, cut_rows, selected_rows, take_rows


def take(contents: Contents, index: RowIndex) -> Contents:
    """The rows that `index` chooses: views for a slice, copies for indices."""
    return contents.each(lambda column: take_rows(column, index), selected_rows(index))


def cut(contents: Contents, sizes: Sequence[int]) -> list[Contents]:
    """Consecutive pieces of the given sizes, as views."""
    tensors = [(name, cut_rows(column, sizes)) for name, column in contents.tensors.items()]
    objects = [(name, cut_rows(column, sizes)) for name, column in contents.objects.items()]
    return [
        contents.with_columns(
            {name: pieces[number] for name, pieces in tensors},
            {name: pieces[number] for name, pieces in objects},
            size,
        )
        for number, size in enumerate(sizes)
    ]


def mini_batches(rows: int, size: int, epochs: int, random: np.random.Generator | None) -> Iterator[RowIndex]:
    """The rows of each mini-batch, pass by pass: in a new order each pass, or in theirs without `random`."""
    for _ in range(epochs):
        order = None if random is None else random.permutation(rows)
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            yield slice(start, stop, 1) if order is None else order[start:stop]
