from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from lab_workers import TensorParallel

from rl_controller import (
    DispatchError,
    LocalWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
)
from rl_controller.dispatch import Mesh
from rl_protocol import DataProto


@pytest.fixture(scope="module")
def quad(cluster: None) -> Iterator[RayWorkerGroup]:
    pool = RayResourcePool([4], use_gpu=False, max_colocate_count=4)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(TensorParallel, base=0), name_prefix="quad")
    group.build(2)
    yield group
    group.shutdown()


def rows(count: int) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(float(count))})


def test_peers_get_the_same_rows_and_one_of_them_answers(quad: RayWorkerGroup) -> None:
    out: DataProto = quad.stamp(rows(8))
    assert out.batch["x"].tolist() == list(range(8))
    assert out.batch["seen_by"].tolist() == [1] * 4 + [3] * 4
    assert quad.what_i_saw() == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2


@pytest.mark.parametrize("count", [0, 1, 3])
def test_uneven_and_empty_shares(quad: RayWorkerGroup, count: int) -> None:
    out: DataProto = quad.stamp(rows(count))
    assert out.batch["x"].tolist() == list(range(count))
    first = (count + 1) // 2
    assert quad.what_i_saw() == [list(range(first))] * 2 + [list(range(first, count))] * 2


def test_futures_follow_the_mesh_too(quad: RayWorkerGroup) -> None:
    batch = rows(5)
    future = quad.stamp_later(batch)
    assert len(future.futures) == 2
    again: DataProto = quad.stamp(future.rename("y", "x").union(rows(5).rename("x", "z")))
    assert again.batch["x"].tolist() == [0, 2, 4, 6, 8] and again.batch["z"].tolist() == [0, 1, 2, 3, 4]
    plain: DataProto = quad.identity(future)
    assert plain.batch["y"].tolist() == [0, 2, 4, 6, 8]


def test_four_workers_add(quad: RayWorkerGroup) -> None:
    assert quad.execute_all_async("add", x=10).get() == [10, 11, 12, 13]
    assert quad.execute_all_sync("add", x=10) == [10, 11, 12, 13]


def test_an_unregistered_mesh_is_named(quad: RayWorkerGroup) -> None:
    with pytest.raises(DispatchError, match=r"have no mesh 'nobody' \(but \['model'\]\)"):
        quad.unbuilt(rows(2))


def test_a_new_layout_is_asked_for_again(quad: RayWorkerGroup) -> None:
    quad.build(1)
    quad.forget_meshes()
    assert quad.stamp(rows(4)).batch["seen_by"].tolist() == [0, 1, 2, 3]
    quad.build(2)
    quad.forget_meshes()


def test_the_mesh_of_one_local_worker() -> None:
    group = LocalWorkerGroup(RayClassWithInitArgs(TensorParallel))
    group.build(1)
    assert group.stamp(rows(3)).batch["seen_by"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "shares",
    [[(0, True), (2, True)], [(0, True), (0, True)], [(0, False), (1, True)], [(-1, True), (0, True)]],
)
def test_impossible_meshes_are_refused(shares: list[tuple[int, bool]]) -> None:
    with pytest.raises(DispatchError, match="mesh 'm'"):
        Mesh.of("m", shares)
