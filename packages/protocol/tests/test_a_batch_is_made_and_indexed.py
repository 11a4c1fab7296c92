from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from protocol_batches import assert_same, mixed_batch
from tensordict import TensorDict

from rl_protocol import (
    ColumnConflictError,
    ColumnTypeError,
    DataProto,
    MissingColumnError,
    RowIndexError,
    ShapeError,
)


@pytest.mark.parametrize("lists", [[[1, 2], [3, 4]], [[1], [2, 3]]])
def test_lists_become_object_columns_and_the_callers_dict_is_kept(lists: list[list[int]]) -> None:
    given: dict[str, Any] = {"tags": lists}
    batch = DataProto.from_dict({"x": torch.zeros(2)}, given)
    column = batch.non_tensor_batch["tags"]
    assert column.shape == (2,) and column.dtype == object and column[1] == lists[1]
    assert given == {"tags": lists} and given["tags"] is lists


def test_adding_a_column_does_not_reach_the_callers_containers() -> None:
    tensors, meta = TensorDict({"x": torch.zeros(2)}, batch_size=[2]), {"m": 1}
    batch = DataProto(tensors, {}, meta)
    batch.batch["y"] = torch.ones(2)
    batch.meta_info["n"] = 2
    assert list(tensors.keys()) == ["x"] and meta == {"m": 1}


def test_from_single_dict_sorts_tensors_from_objects() -> None:
    batch = DataProto.from_single_dict({"x": torch.zeros(2, 3), "o": ["a", "b"], "n": np.arange(2)})
    assert list(batch.batch.keys()) == ["x"] and set(batch.non_tensor_batch) == {"o", "n"}


def test_wrong_columns_are_named() -> None:
    with pytest.raises(ShapeError, match="'y': 3"):
        DataProto.from_dict({"x": torch.zeros(2), "y": torch.zeros(3)})
    with pytest.raises(ShapeError, match="'o' has 3 rows, the batch has 2"):
        DataProto.from_dict({"x": torch.zeros(2)}, {"o": [1, 2, 3]})
    with pytest.raises(ColumnTypeError, match="'x' is a list"):
        DataProto.from_dict({"x": [1, 2]})
    with pytest.raises(ColumnTypeError, match="'o' is a str"):
        DataProto.from_dict({}, {"o": "ab"})
    with pytest.raises(ShapeError, match="'x' is a scalar"):
        DataProto.from_dict({"x": torch.tensor(1.0)})


def test_an_int_gives_one_row() -> None:
    item = mixed_batch(4)[-1]
    assert item.batch["ids"].shape == (3,) and item.non_tensor_batch["uid"] == "uid-3"
    with pytest.raises(RowIndexError, match="row 4 of a batch of 4"):
        mixed_batch(4)[4]
    with pytest.raises(IndexError):
        mixed_batch(4)[-5]
    assert [row.non_tensor_batch["uid"] for row in mixed_batch(3)] == ["uid-0", "uid-1", "uid-2"]


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(None, None, -1), [4, 3, 2, 1, 0]),
        (slice(4, 1), []),
        ([3, 0, 3], [3, 0, 3]),
        ([-1, 0], [4, 0]),
        ([], []),
        (np.array([2, 1]), [2, 1]),
        (torch.tensor([4, 4]), [4, 4]),
        ([True, False, True, False, False], [0, 2]),
        (np.array([False] * 5), []),
        (torch.tensor([False, True, False, False, True]), [1, 4]),
    ],
)
def test_rows_are_chosen_by_any_index(index: Any, rows: list[int]) -> None:
    batch = mixed_batch(5)
    chosen = batch[index]
    assert chosen.non_tensor_batch["uid"].tolist() == [f"uid-{row}" for row in rows]
    assert torch.equal(chosen.batch["ids"], batch.batch["ids"][rows])
    lengths = [len(row) for row in chosen.batch["ragged"].unbind()] if rows else []
    assert lengths == [row % 3 for row in rows]
    assert_same(batch, mixed_batch(5))


def test_bad_indices_are_refused() -> None:
    batch = mixed_batch(3)
    with pytest.raises(RowIndexError, match="row 7 of a batch of 3"):
        batch[[0, 7]]
    with pytest.raises(ShapeError, match="mask of length 2"):
        batch[[True, False]]
    with pytest.raises(ShapeError, match="1-D"):
        batch[np.zeros((2, 2), dtype=int)]
    with pytest.raises(ShapeError, match="float"):
        batch[[0.5]]


def test_select_keeps_only_what_is_named() -> None:
    chosen = mixed_batch(3).select(["ids"], ["uid"], [])
    assert (
        list(chosen.batch.keys()) == ["ids"]
        and list(chosen.non_tensor_batch) == ["uid"]
        and not chosen.meta_info
    )
    with pytest.raises(MissingColumnError, match="'nope'"):
        mixed_batch(3).select(["nope"])
    with pytest.raises(KeyError, match="'nope'"):
        mixed_batch(3).select(meta_info_keys=["nope"])


def test_rename_may_swap_but_not_merge() -> None:
    batch = DataProto.from_dict({"a": torch.zeros(1), "b": torch.ones(1)}, {"o": [1]})
    swapped = batch.rename(["a", "b", "o"], ["b", "a", "p"])
    assert (
        swapped.batch["b"].item() == 0 and swapped.batch["a"].item() == 1 and "p" in swapped.non_tensor_batch
    )
    with pytest.raises(ColumnConflictError, match="'b'"):
        batch.rename("a", "b")
    with pytest.raises(MissingColumnError, match="'z'"):
        batch.rename("z", "y")
    assert batch.batch["a"].item() == 0


def test_repeat_by_row_and_by_batch() -> None:
    batch = mixed_batch(2)
    assert batch.repeat(2).non_tensor_batch["length"].tolist() == [0, 0, 1, 1]
    assert batch.repeat(2, interleave=False).non_tensor_batch["length"].tolist() == [0, 1, 0, 1]
    assert batch.sample_level_repeat([0, 3]).non_tensor_batch["length"].tolist() == [1, 1, 1]
    assert len(batch.repeat(0)) == 0
    with pytest.raises(ShapeError, match="one per row"):
        batch.sample_level_repeat([1])


def test_fold_and_unfold_are_inverse() -> None:
    batch = DataProto.from_dict({"x": torch.arange(12.0).view(6, 2)}, {"n": np.arange(6)})
    folded = batch.fold_batch_dim(2)
    assert folded.batch["x"].shape == (2, 3, 2) and len(folded) == 2
    assert_same(folded.unfold_batch_dim(2), batch)
    with pytest.raises(ShapeError, match="6 rows into 4"):
        batch.fold_batch_dim(4)


def test_to_moves_tensors_and_copies_nothing_that_is_there() -> None:
    batch = mixed_batch(2)
    assert batch.to("cpu").batch["ids"].data_ptr() == batch.batch["ids"].data_ptr()
    assert batch.to("meta").batch["half"].device.type == "meta"


def test_tensordict_round_trip_with_jagged_rows() -> None:
    batch = mixed_batch(4).select(non_tensor_batch_keys=["uid", "note"])
    assert_same(DataProto.from_tensordict(batch.to_tensordict()), batch)
    with pytest.raises(ColumnConflictError, match="'ids'"):
        DataProto.from_dict({"ids": torch.zeros(1)}, meta_info={"ids": 1}).to_tensordict()
