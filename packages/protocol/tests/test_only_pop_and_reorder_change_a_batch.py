from __future__ import annotations

import pytest
import torch
from protocol_batches import assert_same, mixed_batch

from rl_protocol import DataProto, MissingColumnError, RowIndexError


def test_pop_takes_columns_out() -> None:
    batch = mixed_batch(3)
    taken = batch.pop(["ids"], ["uid"], ["step"])
    assert list(taken.batch.keys()) == ["ids"] and taken.meta_info == {"step": 3}
    assert "ids" not in batch.batch.keys() and "uid" not in batch.non_tensor_batch and batch.meta_info == {}  # noqa: SIM118
    assert len(batch) == 3


def test_a_failed_pop_changes_nothing() -> None:
    for keys in [(["ids", "nope"], [], []), ([], ["nope"], []), (["ids"], ["uid"], ["nope"])]:
        batch = mixed_batch(3)
        with pytest.raises(MissingColumnError):
            batch.pop(*keys)
        assert_same(batch, mixed_batch(3))


def test_pop_does_not_reach_batches_that_share_columns() -> None:
    batch = mixed_batch(3)
    other = batch.select()
    batch.pop(["ids"])
    assert "ids" in other.batch.keys()  # noqa: SIM118


def test_reorder_is_in_place_and_all_or_nothing() -> None:
    batch = mixed_batch(3)
    batch.reorder(torch.tensor([2, 0, 1]))
    assert batch.non_tensor_batch["uid"].tolist() == ["uid-2", "uid-0", "uid-1"]
    with pytest.raises(RowIndexError):
        batch.reorder([0, 9])
    assert batch.non_tensor_batch["uid"].tolist() == ["uid-2", "uid-0", "uid-1"]


def test_every_other_method_leaves_self_alone() -> None:
    batch = mixed_batch(4)
    batch.select(["ids"]), batch.rename("ids", "x"), batch.repeat(2), batch.chunk(3), batch.split(3)
    (
        batch.union(DataProto.from_dict({"new": torch.zeros(4)})),
        batch.to("cpu"),
        batch.slice(1, 2),
        batch.clone(),
    )
    batch[[0]], list(batch.make_iterator(2, 1, seed=0)), batch.sample_level_repeat([1, 0, 2, 1])
    assert_same(batch, mixed_batch(4))


def test_a_clone_shares_no_memory() -> None:
    batch = mixed_batch(3)
    copy = batch.clone()
    copy.batch["ids"] += 1
    copy.non_tensor_batch["note"][1]["scores"] += 1
    copy.non_tensor_batch["length"][0] = 9
    copy.meta_info["step"] = 0
    assert_same(batch, mixed_batch(3))


def test_slices_are_views() -> None:
    batch = mixed_batch(4)
    piece = batch.slice(1, 3)
    assert piece.batch["ids"].data_ptr() == batch.batch["ids"][1:].data_ptr()
    assert all(
        a.batch["ids"].untyped_storage().data_ptr() == batch.batch["ids"].untyped_storage().data_ptr()
        for a in batch.chunk(2)
    )
