from __future__ import annotations

import numpy as np
import pytest
import torch

from rl_protocol import ColumnConflictError, DataProto, MetaConflictError, ShapeError


def test_a_conflict_in_the_second_of_three_keys_leaves_both_as_they_were() -> None:
    left = DataProto.from_dict({"b": torch.zeros(2)}, meta_info={"m": 1})
    right = DataProto.from_dict({"a": torch.ones(2), "b": torch.ones(2), "c": torch.ones(2)})
    with pytest.raises(ColumnConflictError, match="'b'"):
        left.union(right)
    assert list(left.batch.keys()) == ["b"] and left.meta_info == {"m": 1}
    assert torch.equal(left.batch["b"], torch.zeros(2)) and set(right.batch.keys()) == {"a", "b", "c"}


def test_union_returns_a_new_batch_that_shares_storage() -> None:
    left = DataProto.from_dict({"a": torch.zeros(2)})
    right = DataProto.from_dict({"b": torch.ones(2)}, {"o": ["x", "y"]})
    both = left.union(right)
    assert set(both.batch.keys()) == {"a", "b"} and list(left.batch.keys()) == ["a"]
    assert both.batch["b"].data_ptr() == right.batch["b"].data_ptr()
    assert both.non_tensor_batch["o"].tolist() == ["x", "y"]


def test_equal_nans_are_equal() -> None:
    nan = torch.tensor([1.0, float("nan")])
    batch = DataProto.from_dict({"x": nan}, {"o": [float("nan"), 1.0], "f": np.array([np.nan, 2.0])})
    again = DataProto.from_dict({"x": nan.clone()}, {"o": [float("nan"), 1.0], "f": np.array([np.nan, 2.0])})
    assert len(batch.union(again)) == 2
    elsewhere = DataProto.from_dict({"x": nan.flip(0)})
    with pytest.raises(ColumnConflictError):
        batch.union(elsewhere)


def test_nested_arrays_compare_by_value() -> None:
    def batch(last: float) -> DataProto:
        return DataProto.from_dict({}, {"info": [{"a": np.array([1.0, last]), "t": [torch.ones(2)]}, None]})

    assert len(batch(2.0).union(batch(2.0))) == 2
    with pytest.raises(ColumnConflictError, match="'info'"):
        batch(2.0).union(batch(3.0))


def test_row_counts_kinds_and_meta_must_agree() -> None:
    two = DataProto.from_dict({"a": torch.zeros(2)})
    with pytest.raises(ShapeError, match="2 and 3 rows"):
        two.union(DataProto.from_dict({"b": torch.zeros(3)}))
    with pytest.raises(ColumnConflictError, match="'a'"):
        two.union(DataProto.from_dict({}, {"a": [1, 2]}))
    with pytest.raises(ColumnConflictError, match="'a'"):
        two.union(DataProto.from_dict({"a": torch.zeros(2, dtype=torch.int64)}))
    with pytest.raises(MetaConflictError, match="'k'"):
        DataProto(meta_info={"k": 1}).union(DataProto(meta_info={"k": 2}))


def test_results_of_two_calls_are_listed() -> None:
    both = DataProto(meta_info={"timing": 1.0}).union(DataProto(meta_info={"timing": 2.0}))
    assert both.meta_info["timing"] == [1.0, 2.0]


def test_a_batch_of_meta_only_unites_with_anything() -> None:
    rows = DataProto.from_dict({"a": torch.zeros(2)})
    assert len(rows.union(DataProto(meta_info={"m": 1}))) == 2
    assert len(DataProto(meta_info={"m": 1}).union(rows)) == 2
