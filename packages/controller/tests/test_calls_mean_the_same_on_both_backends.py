from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_controller import DispatchError, UnknownMethodError, WorkerMethodError
from rl_protocol import DataProto, DataProtoFuture


def numbered(rows: int) -> DataProto:
    return DataProto.from_dict(
        {"x": torch.arange(float(rows))}, {"o": [{"a": row} for row in range(rows)]}, {"temperature": 0.5}
    )


def column(batch: DataProto) -> list[float]:
    assert batch.batch is not None
    values: list[float] = batch.batch["x"].tolist()
    return values


@pytest.mark.parametrize("rows", [0, 1, 3, 4])
def test_rows_come_back_in_order_without_padding(group: Any, rows: int) -> None:
    batch = numbered(rows)
    assert column(group.identity(batch)) == column(batch)
    assert column(group.identity(batch=batch)) == column(batch)
    future = group.identity_later(batch)
    assert isinstance(future, DataProtoFuture) and column(future.get()) == column(batch)
    assert column(group.identity(batch, other=numbered(rows))) == column(batch)
    assert len(batch) == rows and group.identity(batch).meta_info == {"temperature": 0.5}


def test_every_worker_reports_its_share(group: Any) -> None:
    counts = group.count(numbered(3))
    expected = [2, 1] if group.world_size == 2 else [3]
    assert [c["rows"] for c in counts] == expected and [c["rank"] for c in counts] == list(
        range(group.world_size)
    )
    assert [c["rows"] for c in group.count(numbered(1))] == ([1, 0] if group.world_size == 2 else [1])


def test_the_type_of_a_value_never_decides(group: Any) -> None:
    size = group.world_size
    for value in ([10, 20][:size], (10, 20)[:size], numbered(2)):
        for got, k in group.receive(value, k=value):
            if isinstance(value, DataProto):
                assert len(got) == len(k) == 2
            else:
                assert got == value and k == value
    assert group.execute_all_sync("receive", [1] * size) == [([1] * size, None)] * size


def test_scatter_where_the_mode_says_so(group: Any) -> None:
    size = group.world_size
    expected = [(10 * (rank + 1), 5) for rank in range(size)]
    assert group.scatter([10, 20][:size], k=5) == expected
    assert group.scatter((10, 20)[:size], k=[5] * size) == expected
    assert group.compute([10, 20][:size]) == [10, 21][:size]
    with pytest.raises(DispatchError, match=rf"argument 0 has 3 values for the {size} workers"):
        group.scatter([1, 2, 3])
    with pytest.raises(DispatchError, match="argument 'k' has 3 values"):
        group.scatter([1] * size, k=(1, 2, 3))


def test_rank_zero_alone(group: Any) -> None:
    assert group.only_first(7) == 7 and group.executed_on_first(7) == 7
    assert group.only_first_later(7).get() == [7]
    assert group.execute_rank_zero_sync("add", 1) == 101


def test_execute_by_name(group: Any) -> None:
    size = group.world_size
    assert group.execute_all_sync("add", 1, y=2) == [103 + rank for rank in range(size)]
    assert group.execute_all_async("add", x=10).get() == [110 + rank for rank in range(size)]
    with pytest.raises((UnknownMethodError, WorkerMethodError), match="no method 'nothing'"):
        group.execute_all_sync("nothing")


def test_blocking_or_not(group: Any) -> None:
    references = group.receive_later("v")
    assert len(references) == group.world_size and references.get() == ["v"] * group.world_size


def test_a_mode_of_the_users_own(group: Any) -> None:
    assert group.in_reverse(1, y=100) == (111 + 110 if group.world_size == 2 else 110)
    with pytest.raises(DispatchError, match=r"custom of .*wrong_mode must return a list with one entry"):
        group.wrong_mode(1)


def test_a_function_may_be_sent(group: Any) -> None:
    doubled = group.apply(lambda batch: DataProto.concat([batch, batch]), numbered(2))
    assert len(doubled) == 4
    with pytest.raises(DispatchError, match="takes a function"):
        group.apply(numbered(2), numbered(2))


def test_what_a_worker_writes_stays_with_it(group: Any) -> None:
    batch = numbered(4)
    changed = group.overwrite(batch)
    assert column(batch) == [0, 1, 2, 3] and [o["a"] for o in batch.non_tensor_batch["o"]] == [0, 1, 2, 3]
    assert changed.batch["x"].min() >= 1000 and changed.non_tensor_batch["o"][3]["a"] == 4
    assert group.overwrite_all(batch) == [6 + 4 * (rank + 1) for rank in range(group.world_size)]
    assert column(batch) == [0, 1, 2, 3]


def test_arrays_may_be_written_too(group: Any) -> None:
    array = np.zeros(50_000)
    assert group.write_array(array) == [50_000.0] * group.world_size
    assert not array.any()


def test_what_a_worker_keeps_is_not_what_it_was_given_or_gave(group: Any) -> None:
    batch = numbered(2)
    given = group.give(batch)
    group.change_kept()
    assert column(given) == [0, 1] and column(batch) == [0, 1]
    later = group.identity_later(batch)
    batch.batch["x"] += 7
    assert column(later.get()) == [0, 1]


def test_a_user_error_names_group_rank_and_method(group: Any) -> None:
    with pytest.raises(WorkerMethodError) as caught:
        group.fail(rank=group.world_size - 1)
    error, rank = caught.value, group.world_size - 1
    assert error.group == group.name and error.method == "fail" and error.ranks == (rank,)
    assert isinstance(error.cause, ValueError) and isinstance(error.__cause__, ValueError)
    for part in (
        f"'{group.name}'",
        f"rank {rank}",
        "'fail'",
        f"bad luck on {rank}",
        "lab_workers.py",
        "in fail",
    ):
        assert part in str(error)
    assert len(group.place()) == group.world_size


def test_a_future_raises_where_it_is_used(group: Any) -> None:
    future = group.fail_later(numbered(2))
    for use in (future.get, future.wait, lambda: future.select(["x"]), lambda: len(future)):
        with pytest.raises(WorkerMethodError, match="lost key"):
            use()


def test_an_unknown_method_lists_what_there_is(group: Any) -> None:
    with pytest.raises(AttributeError, match=r"no method 'idenity'.*identity"):
        group.idenity(numbered(2))
    assert not hasattr(group, "add")


def test_futures_pass_from_call_to_call(group: Any) -> None:
    batch = numbered(5)
    first = group.tag_later(batch, "y")
    both = first.union(batch.select(["x"], [], []))
    second = group.tag_later(both.rename("y", "x2").select(["x", "x2"], [], []), "z")
    result = second.union(both).get()
    assert result.batch["z"].tolist() == [1, 2, 3, 4, 5] == result.batch["y"].tolist()
    assert sum(first.meta_info["metrics"]["rows"]) == 5
    assert column(group.identity(both.slice(1, 4))) == [1, 2, 3]
    both.reorder([4, 3, 2, 1, 0])
    assert column(group.identity(both)) == [4, 3, 2, 1, 0]


def test_a_written_argument_does_not_reach_other_readers_of_a_future(group: Any) -> None:
    future = group.identity_later(numbered(4))
    group.overwrite(future)
    group.overwrite(future.select(["x"]))
    assert column(future.get()) == [0, 1, 2, 3]
