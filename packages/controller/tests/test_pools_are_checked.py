from __future__ import annotations

import pytest

from rl_controller import PoolError, RayResourcePool, ResourcePool, merge_resource_pool, split_resource_pool


def test_counts_must_be_positive() -> None:
    for bad in ([0], [2, -1]):
        with pytest.raises(PoolError, match="at least 1"):
            ResourcePool(bad)
    with pytest.raises(PoolError, match="process_on_nodes is empty"):
        RayResourcePool([])
    with pytest.raises(PoolError, match="max_colocate_count"):
        RayResourcePool([1], max_colocate_count=0)


def test_splits_must_use_up_the_pool() -> None:
    pool = RayResourcePool([4, 2], use_gpu=False)
    assert [part.process_on_nodes for part in pool.split([1, 4, 1])] == [[1], [3, 1], [1]]
    assert [part.world_size for part in split_resource_pool(pool, 2)] == [2, 2, 2]
    for bad in ([4, 1], [6, 0], 4, 0):
        with pytest.raises(PoolError):
            pool.split(bad)


def test_only_like_pools_merge() -> None:
    left, right = (
        RayResourcePool([2], use_gpu=False),
        RayResourcePool([1, 1], use_gpu=False, max_colocate_count=2),
    )
    merged = merge_resource_pool(left, right)
    assert merged.process_on_nodes == [2, 1, 1] and merged.max_colocate_count == 2
    assert [p.process_on_nodes for p in merged.split([3, 1])] == [[2, 1], [1]]
    with pytest.raises(PoolError, match="different slots"):
        merge_resource_pool(left, RayResourcePool([1], use_gpu=True))
    with pytest.raises(PoolError, match="at least one pool"):
        merge_resource_pool()
