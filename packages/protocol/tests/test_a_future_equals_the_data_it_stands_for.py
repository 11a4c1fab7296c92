from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_batches import assert_same, mixed_batch

from rl_protocol import (
    ColumnConflictError,
    DataProto,
    DataProtoFuture,
    FutureError,
    LocalRef,
    LocalStore,
    MetaConflictError,
    MissingColumnError,
    RLProtocolError,
    ShapeError,
)


def future_of(batch: DataProto, pieces: int) -> DataProtoFuture:
    return DataProtoFuture([LocalRef(piece) for piece in batch.chunk(pieces)])


def plain_batch(rows: int, seed: int) -> DataProto:
    base = mixed_batch(rows, seed)
    return base.select([k for k in base.batch.keys() if k != "ragged"] if seed % 2 else None)  # noqa: SIM118


class Pair:
    """The same batch twice: as data and as a future."""

    def __init__(self, data: DataProto, future: DataProtoFuture) -> None:
        self.data, self.future = data, future

    def step(self, draw: Any, operation: str) -> Pair:
        rows = len(self.data)
        names = list(self.data.batch.keys()) if self.data.batch is not None else []
        objects = list(self.data.non_tensor_batch)
        if operation == "select":
            keep = [name for name in names if draw(st.booleans())]
            keep_objects = [name for name in objects if draw(st.booleans())]
            return Pair(self.data.select(keep, keep_objects), self.future.select(keep, keep_objects))
        if operation == "rename" and names + objects:
            old = draw(st.sampled_from(names + objects))
            new = f"{old}_{draw(st.integers(0, 99))}"
            return (
                Pair(self.data.rename(old, new), self.future.rename(old, new))
                if new not in names + objects
                else self
            )
        if operation == "union":
            return self.union(draw, rows)
        if operation == "repeat" and rows < 40:
            times, interleave = draw(st.integers(0, 3)), draw(st.booleans())
            return Pair(self.data.repeat(times, interleave), self.future.repeat(times, interleave))
        if operation == "reorder":
            order = draw(st.permutations(range(rows)))
            self.data.reorder(order)
            self.future.reorder(order)
        if operation == "slice":
            bounds = [draw(st.none() | st.integers(-rows, rows)) for _ in range(2)]
            step = draw(st.sampled_from([None, 1, 2, -1]))
            return Pair(self.data.slice(*bounds, step), self.future.slice(*bounds, step))
        if operation == "concat" and rows < 40:
            other = Pair(self.data, self.future).step(draw, "slice")
            return Pair(
                DataProto.concat([self.data, other.data]), DataProtoFuture.concat([self.future, other.future])
            )
        if operation == "chunk":
            parts = draw(st.integers(1, 4))
            number = draw(st.integers(0, parts - 1))
            return Pair(self.data.chunk(parts)[number], self.future.chunk(parts)[number])
        return self

    def union(self, draw: Any, rows: int) -> Pair:
        name = f"u{draw(st.integers(0, 9))}"
        taken = self.data.batch is not None and name in self.data.batch.keys()  # noqa: SIM118
        if taken or (self.data.batch is None and not self.data.non_tensor_batch):
            return self
        other = DataProto.from_dict({name: torch.randn(rows, 2)}, meta_info={"timing": draw(st.floats(0, 9))})
        real = draw(st.booleans())
        united = self.future.union(other if real else future_as_is(other, draw(st.integers(1, 4))))
        return Pair(self.data.union(other), united)


def future_as_is(batch: DataProto, pieces: int) -> DataProtoFuture:
    """A future whose meta_info is the batch's: pieces after the first carry no results of calls."""
    parts = batch.chunk(pieces)
    for part in parts[1:]:
        part.meta_info.pop("timing", None)
    future = DataProtoFuture([LocalRef(part) for part in parts])
    future.meta_info.update(batch.meta_info)
    return future


OPERATIONS = ["select", "rename", "union", "repeat", "reorder", "slice", "concat", "chunk"]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.integers(1, 9), pieces=st.integers(1, 4), seed=st.integers(0, 3))
def test_any_chain_of_edits_gives_what_it_gives_on_data(data: Any, rows: int, pieces: int, seed: int) -> None:
    batch = plain_batch(rows, seed)
    pair = Pair(batch.select(), future_of(batch, pieces))
    for operation in data.draw(st.lists(st.sampled_from(OPERATIONS), max_size=7)):
        pair = pair.step(data.draw, operation)
    assert len(pair.future) == len(pair.data)
    assert_same(pair.future.get(), pair.data)
    consumers = data.draw(st.integers(1, 4))
    shares = [resolved(piece) for piece in pair.future.pieces(consumers)]
    merged = DataProto.concat([share.select(meta_info_keys=[]) for share in shares])
    assert_same(merged, pair.data.select(meta_info_keys=[]))


def resolved(piece: Any) -> DataProto:
    """What a consumer builds: the recipe travels by pickle, the values come from the store."""
    recipe = pickle.loads(pickle.dumps(piece.recipe))
    built: DataProto = recipe.build([source.ref.value for source in piece.sources])
    return built


def test_equal_layouts_read_one_piece_each() -> None:
    batch = mixed_batch(7)
    first, second = future_of(batch.select(["ids"], []), 3), future_of(batch.select(["mask"], ["uid"]), 3)
    united = first.union(second).rename("mask", "m").repeat(2)
    for number, piece in enumerate(united.pieces(3)):
        refs = [source.ref for source in piece.sources]
        assert refs == [first.futures[number], second.futures[number]]
    untouched = future_of(batch, 3)
    for number, piece in enumerate(untouched.pieces(3)):
        assert piece.recipe.groups is None and [s.ref for s in piece.sources] == [untouched.futures[number]]


def test_whole_pieces_are_handed_on_without_a_copy() -> None:
    batch = mixed_batch(4)
    future = future_of(batch, 2).select(["ids"], [])
    piece = future.pieces(2)[1]
    shared = piece.recipe.build([source.ref.value for source in piece.sources], private=False)
    assert shared.batch["ids"].data_ptr() == batch.batch["ids"][2:].data_ptr()
    own = piece.recipe.build([source.ref.value for source in piece.sources], private=True)
    assert own.batch["ids"].data_ptr() != shared.batch["ids"].data_ptr()


@pytest.mark.parametrize("pieces", [1, 2])
def test_what_get_returns_is_the_callers_to_write(pieces: int) -> None:
    batch = mixed_batch(4)
    future = future_of(batch, pieces)
    for taken in (
        future.get(),
        future.select().get(),
        future.rename("ids", "ids2").get().rename("ids2", "ids"),
    ):
        taken.batch["ids"] += 1
        taken.non_tensor_batch["note"][1]["scores"] += 1
        taken.non_tensor_batch["length"][:] = 0
        assert_same(future.get(), mixed_batch(4))
    assert_same(batch, mixed_batch(4))


def test_errors_are_those_of_the_data() -> None:
    batch = mixed_batch(4)
    future = future_of(batch, 2)
    for operation in (
        lambda b: b.select(["nope"]),
        lambda b: b.rename("ids", "mask"),
        lambda b: b.repeat(-1),
        lambda b: b[[9]],
        lambda b: b.chunk(0),
        lambda b: b.union(DataProto.from_dict({"x": torch.zeros(3)})),
        lambda b: b.union(DataProto.from_dict({"ids": torch.zeros(4, 3, dtype=torch.int64)})),
        lambda b: b.union(DataProto.from_dict({"uid": torch.zeros(4)})),
        lambda b: b.union(DataProto(meta_info={"step": 4})),
    ):
        with pytest.raises(RLProtocolError) as on_data:
            operation(batch)
        with pytest.raises(type(on_data.value)):
            operation(future)
    assert_same(future.get(), batch)


def test_columns_that_both_hold_are_compared_by_value() -> None:
    batch = mixed_batch(4)
    future = future_of(batch, 2)
    assert_same(future.union(batch).get(), batch)
    assert_same(future.union(future_of(batch.clone(), 3)).get(), batch)
    assert_same(future.union(future).get(), batch)
    changed = batch.clone()
    changed.batch["ids"][3, 0] += 1
    with pytest.raises(ColumnConflictError, match="'ids'"):
        future.union(changed)


def test_concat_of_futures_checks_columns_and_meta() -> None:
    batch = mixed_batch(4)
    with pytest.raises(MissingColumnError, match="part 1 lacks tensor columns"):
        DataProtoFuture.concat([future_of(batch, 2), future_of(batch.select(["ids"]), 2)])
    with pytest.raises(MetaConflictError, match="step"):
        other = DataProto(batch.batch, batch.non_tensor_batch, {"step": 4})
        DataProtoFuture.concat([future_of(batch, 2), other])
    with pytest.raises(ShapeError, match="empty list"):
        DataProtoFuture.concat([])


def test_concat_of_differently_renamed_futures() -> None:
    batch = DataProto.from_dict({"x": torch.arange(4.0), "y": torch.zeros(4)})
    renamed = batch.rename(["x", "y"], ["y", "x"])
    merged = DataProtoFuture.concat([future_of(batch, 2), future_of(batch, 2).rename(["x", "y"], ["y", "x"])])
    assert_same(merged.get(), DataProto.concat([batch, renamed]))


def test_functions_of_the_users_own_resolve_first() -> None:
    parts = mixed_batch(4).chunk(2)
    future = DataProtoFuture(
        [LocalRef(part) for part in parts],
        lambda values: DataProto.concat(values[::-1]),
        lambda data: data.slice(1),
    )
    expected = DataProto.concat(parts[::-1]).slice(1)
    assert_same(future.get(), expected)
    assert_same(future.select(["ids"]).get(), expected.select(["ids"]))


def test_only_batches_can_be_edited() -> None:
    future = DataProtoFuture([LocalRef({"loss": 1.0})])
    with pytest.raises(FutureError, match="returned a dict"):
        future.select()
    with pytest.raises(FutureError, match=r"future\[i:i\+1\]"):
        future[0]
    with pytest.raises(FutureError, match="argument of its own"):
        pickle.dumps(future)


def test_index_arrays_stay_small_and_takes_are_slices() -> None:
    rows = 20_000
    batch = DataProto.from_dict({"x": torch.zeros(rows, 1)})
    future = future_of(batch, 8)
    assert len(pickle.dumps(future.select().pieces(8)[0].recipe)) < 1_000
    order = np.random.default_rng(0).permutation(rows)
    future.reorder(order)
    assert torch.equal(future.get().batch["x"], batch.batch["x"][order])


def test_a_real_batch_is_put_in_the_pieces_of_the_future() -> None:
    class Counting(LocalStore):
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def put(self, value: Any) -> LocalRef:
            self.sizes.append(len(value))
            return LocalRef(value)

    store, batch = Counting(), mixed_batch(5)
    future = DataProtoFuture([LocalRef(p) for p in batch.select(["ids"]).chunk(2)], store=store)
    united = future.union(batch.select(["mask"], []))
    assert store.sizes == [3, 2] and [len(p.sources) for p in united.pieces(2)] == [2, 2]
