from __future__ import annotations

import pytest
from protocol_batches import mixed_batch

from rl_protocol import ShapeError


def orders(seed: int | None, epochs: int = 1, **kwargs: bool) -> list[list[int]]:
    batch = mixed_batch(7)
    return [b.non_tensor_batch["length"].tolist() for b in batch.make_iterator(3, epochs, seed, **kwargs)]


def test_every_row_comes_once_per_epoch() -> None:
    batches = orders(seed=1, epochs=2)
    assert [len(b) for b in batches] == [3, 3, 1, 3, 3, 1]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(row for b in epoch for row in b) == list(range(7))


def test_the_seed_decides_the_order_and_epochs_differ() -> None:
    assert orders(seed=1, epochs=2) == orders(seed=1, epochs=2)
    assert orders(seed=1) != orders(seed=2)
    both = orders(seed=1, epochs=2)
    assert both[:3] != both[3:]
    assert [row for b in orders(seed=1) for row in b] != list(range(7))


def test_order_can_be_kept() -> None:
    assert orders(seed=None, shuffle=False) == [[0, 1, 2], [3, 4, 5], [6]]


def test_sizes_are_checked_before_the_first_batch() -> None:
    with pytest.raises(ShapeError, match="mini_batch_size"):
        mixed_batch(2).make_iterator(0)
