"""The order of prompts: once per epoch, and the same after a resume."""

from __future__ import annotations

import pytest

from rl_trainer.data.prompt_stream import PromptStream
from rl_trainer.errors import CheckpointError, DataError


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_resumed_run_sees_what_an_unbroken_one_sees(stop: int) -> None:
    whole = list(PromptStream(8, seed=3).batches(4, epochs=3))
    first = PromptStream(8, seed=3)
    done = [first.take(4) for _ in range(stop)]
    second = PromptStream(8, seed=3)
    second.load_state_dict(first.state_dict())
    assert done + list(second.batches(4, epochs=3)) == whole
    assert len(whole) == 6


def test_every_row_comes_once_per_epoch_also_where_batches_span_epochs() -> None:
    drawn = [pair for batch in PromptStream(61, seed=0).batches(16, epochs=3) for pair in batch]
    for epoch in range(3):
        assert sorted(row for e, row in drawn if e == epoch) == list(range(61))
    assert len({tuple(row for e, row in drawn if e == epoch) for epoch in range(3)}) == 3


def test_without_shuffling_the_files_order_is_kept() -> None:
    assert PromptStream(3, seed=0, shuffle=False).take(4) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_other_data_than_the_checkpoints_is_refused() -> None:
    with pytest.raises(CheckpointError, match="size 8"):
        PromptStream(9, seed=0).load_state_dict(PromptStream(8, seed=0).state_dict())
    with pytest.raises(DataError, match="no training prompts"):
        PromptStream(0, seed=0)
