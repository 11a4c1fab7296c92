from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_batches import assert_same, mixed_batch

from rl_protocol import DataProto, MetaConflictError, MissingColumnError, ShapeError, balanced_sizes


@pytest.mark.parametrize(
    ("rows", "parts", "sizes"),
    [(146, 4, [37, 37, 36, 36]), (5, 4, [2, 1, 1, 1]), (3, 5, [1, 1, 1, 0, 0]), (0, 2, [0, 0])],
)
def test_chunk_gives_exactly_n_pieces(rows: int, parts: int, sizes: list[int]) -> None:
    batch = mixed_batch(rows)
    pieces = batch.chunk(parts)
    assert [len(piece) for piece in pieces] == sizes
    assert_same(DataProto.concat(pieces), batch)


@given(rows=st.integers(0, 500), parts=st.integers(1, 70))
def test_balanced_sizes_differ_by_at_most_one(rows: int, parts: int) -> None:
    sizes = balanced_sizes(rows, parts)
    assert len(sizes) == parts and sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 12), parts=st.integers(1, 15), size=st.integers(1, 14))
def test_cutting_and_stacking_is_the_identity(rows: int, parts: int, size: int) -> None:
    batch = mixed_batch(rows)
    assert_same(DataProto.concat(batch.chunk(parts)), batch)
    assert_same(DataProto.concat(batch.split(size)), batch)


@pytest.mark.parametrize("parts", [0, -1])
def test_chunk_refuses_fewer_than_one_piece(parts: int) -> None:
    with pytest.raises(ShapeError, match="at least 1"):
        mixed_batch(3).chunk(parts)


def test_results_of_calls_become_lists_and_other_keys_survive() -> None:
    x = torch.zeros(1, 2)
    left = DataProto.from_dict({"x": x}, meta_info={"timing": 73.94637, "metrics": {"loss": 1.0}, "a": 1})
    right = DataProto.from_dict({"x": x}, meta_info={"timing": 73.94638, "metrics": {"loss": 2.0}, "b": 2})
    meta = DataProto.concat([left, right]).meta_info
    assert meta == {
        "timing": [73.94637, 73.94638],
        "metrics": {"loss": [1.0, 2.0]},
        "a": 1,
        "b": 2,
    }


def test_merging_results_is_associative() -> None:
    parts = [DataProto(meta_info={"metrics": {"loss": float(i)}}) for i in range(4)]
    flat = DataProto.concat(parts)
    nested = DataProto.concat([DataProto.concat(parts[:3]), DataProto.concat(parts[3:])])
    assert flat.meta_info == nested.meta_info
    assert flat.meta_info["metrics"] == {"loss": [0.0, 1.0, 2.0, 3.0]}


def test_unequal_meta_names_key_and_both_values() -> None:
    left = DataProto.from_dict({"x": torch.zeros(1)}, meta_info={"temperature": 0.7})
    right = DataProto.from_dict({"x": torch.zeros(1)}, meta_info={"temperature": 1.0})
    with pytest.raises(MetaConflictError, match=r"temperature.*0\.7.*1\.0"):
        DataProto.concat([left, right])


def test_meta_compares_by_value() -> None:
    parts = [
        DataProto(meta_info={"nan": float("nan"), "t": torch.ones(2), "d": {"k": [1]}}) for _ in range(2)
    ]
    assert set(DataProto.concat(parts).meta_info) == {"nan", "t", "d"}


def test_a_part_without_tensors_is_named() -> None:
    whole = DataProto.from_dict({"x": torch.zeros(2)}, {"o": [1, 2]})
    objects_only = DataProto.from_dict({}, {"o": [3]})
    with pytest.raises(MissingColumnError, match=r"part 1 lacks tensor columns \['x'\]"):
        DataProto.concat([whole, objects_only])
    with pytest.raises(MissingColumnError, match=r"has \['x'\] that part 0 lacks"):
        DataProto.concat([objects_only, whole])


def test_parts_with_different_keys_or_dtypes_are_refused() -> None:
    a = DataProto.from_dict({"x": torch.zeros(2), "y": torch.zeros(2)})
    b = DataProto.from_dict({"x": torch.zeros(2), "z": torch.zeros(2)})
    with pytest.raises(MissingColumnError, match=r"\['y'\].*\['z'\]"):
        DataProto.concat([a, b])
    with pytest.raises(ShapeError, match=r"'x'.*float32.*int64"):
        DataProto.concat(
            [DataProto.from_dict({"x": torch.zeros(2)}), DataProto.from_dict({"x": torch.arange(2)})]
        )
    with pytest.raises(ShapeError, match=r"'x'.*\(2, 3\).*\(2, 4\)"):
        DataProto.concat(
            [DataProto.from_dict({"x": torch.zeros(2, 3)}), DataProto.from_dict({"x": torch.zeros(2, 4)})]
        )


def test_nothing_to_concat_is_an_error() -> None:
    with pytest.raises(ShapeError, match="empty list"):
        DataProto.concat([])


def test_parts_without_any_column_merge_their_meta() -> None:
    merged = DataProto.concat([DataProto(meta_info={"a": 1}), DataProto(meta_info={"b": 2})])
    assert len(merged) == 0 and merged.batch is None and merged.meta_info == {"a": 1, "b": 2}
