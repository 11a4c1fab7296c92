"""Resource pools: which slots, on which nodes, the workers of a group run in."""

from __future__ import annotations

import importlib
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_controller.errors import PlacementTimeoutError, PoolError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Slot:
    """Room for one worker of each group in the pool: a bundle of a placement group."""

    placement_group: Any
    bundle: int
    node: int
    """Which of the pool's nodes, counted from 0."""


class ResourcePool:
    """How many worker processes on each node: `[2, 4]` is two on the first and four on the second."""

    def __init__(self, process_on_nodes: Sequence[int] = (), max_colocate_count: int = 10) -> None:
        """Describe the pool.

        Args:
            process_on_nodes: processes per node, each at least 1.
            max_colocate_count: how many groups may share a slot.
        """
        self.process_on_nodes = list(process_on_nodes)
        if any(count < 1 for count in self.process_on_nodes):
            raise PoolError(f"process_on_nodes must be counts of at least 1, got {self.process_on_nodes}.")
        if max_colocate_count < 1:
            raise PoolError(f"max_colocate_count must be at least 1, got {max_colocate_count}.")
        self.max_colocate_count = max_colocate_count

    @property
    def world_size(self) -> int:
        """Number of slots."""
        return sum(self.process_on_nodes)

    def local_world_sizes(self) -> list[int]:
        """For each rank, how many ranks its node has."""
        return [count for count in self.process_on_nodes for _ in range(count)]

    def local_ranks(self) -> list[int]:
        """For each rank, its place on its node."""
        return [rank for count in self.process_on_nodes for rank in range(count)]


class RayResourcePool(ResourcePool):
    """A pool on a Ray cluster: one placement group per node, made when first needed."""

    def __init__(
        self,
        process_on_nodes: Sequence[int],
        use_gpu: bool | None = None,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        strategy: str = "STRICT_PACK",
        cpus_per_slot: float = 1,
        resources_per_slot: dict[str, float] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """Describe the pool; nothing is asked of the cluster yet.

        Args:
            process_on_nodes: workers on each node.
            use_gpu: one GPU per slot; None: if the cluster has any.
            name_prefix: prefix of the placement groups' names.
            max_colocate_count: how many groups may share the pool; each takes that fraction of a slot.
            detached: the placement groups outlive this driver.
            strategy: Ray's strategy within each placement group. STRICT_PACK keeps it on one node.
            cpus_per_slot: CPUs of a slot.
            resources_per_slot: further resources of a slot, such as `{"TPU": 1}`.
            timeout_s: how long to wait for the cluster to provide them.
        """
        super().__init__(process_on_nodes, max_colocate_count)
        if not self.process_on_nodes:
            raise PoolError("process_on_nodes is empty: a pool needs at least one node with one process.")
        self.use_gpu = use_gpu
        self.name_prefix = name_prefix or f"rl_pool_{uuid.uuid4().hex[:8]}"
        self.detached = detached
        self.strategy = strategy
        self.cpus_per_slot = cpus_per_slot
        self.resources_per_slot = dict(resources_per_slot or {})
        self.timeout_s = timeout_s
        self._required: dict[str, float] = {}
        self._groups: list[Any] | None = None

    def require(self, resources: dict[str, float]) -> None:
        """Make room in each slot for custom resources that one group's workers ask for.

        Raises:
            PoolError: the pool is reserved already, without them.
        """
        if not self.is_reserved:
            for name, amount in resources.items():
                self._required[name] = self._required.get(name, 0) + amount
            return
        bundle = self.bundle()
        lacking = {name: amount for name, amount in resources.items() if bundle.get(name, 0) < amount}
        if lacking:
            raise PoolError(
                f"workers ask for {lacking}, but the slots of pool {self.name_prefix!r} are reserved with "
                f"{bundle}. Give the pool resources_per_slot, or start the group that asks for them first."
            )

    def wants_gpu(self) -> bool:
        """Whether slots hold a GPU, found out from the cluster where it was left open."""
        if self.use_gpu is None:
            ray: Any = importlib.import_module("ray")
            self.use_gpu = ray.cluster_resources().get("GPU", 0) > 0
        return self.use_gpu

    def bundle(self) -> dict[str, float]:
        """The resources of one slot."""
        gpu = {"GPU": 1.0} if self.wants_gpu() else {}
        required = {k: max(v, self.resources_per_slot.get(k, 0)) for k, v in self._required.items()}
        return {"CPU": float(self.cpus_per_slot), **gpu, **self.resources_per_slot, **required}

    def get_placement_groups(self, timeout_s: float | None = None) -> list[Any]:
        """The placement groups, one per node; made and waited for the first time.

        Raises:
            PlacementTimeoutError: the cluster did not provide them in time; what was made is given back.
        """
        if self._groups is None:
            self._groups = self._reserve(self.timeout_s if timeout_s is None else timeout_s)
        return self._groups

    def _reserve(self, timeout_s: float) -> list[Any]:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        bundle = self.bundle()
        lifetime = "detached" if self.detached else None
        # the largest first: a small one must not take the only node where a large one fits
        by_size = sorted(enumerate(self.process_on_nodes), key=lambda entry: -entry[1])
        made = {
            node: placement_group([bundle] * count, self.strategy, f"{self.name_prefix}_{node}", lifetime)
            for node, count in by_size
        }
        groups = [made[node] for node in range(len(made))]
        ready, _ = ray.wait([group.ready() for group in groups], num_returns=len(groups), timeout=timeout_s)
        if len(ready) < len(groups):
            for group in groups:
                remove_placement_group(group)
            raise PlacementTimeoutError(self._unmet(bundle, timeout_s))
        return groups

    def _unmet(self, bundle: dict[str, float], timeout_s: float) -> str:
        ray: Any = importlib.import_module("ray")
        nodes = [
            {
                k: v
                for k, v in node["Resources"].items()
                if k in ("CPU", "GPU") or k in self.resources_per_slot
            }
            for node in ray.nodes()
            if node["Alive"]
        ]
        free = {k: v for k, v in ray.available_resources().items() if k in bundle}
        return (
            f"pool {self.name_prefix!r} asked for {self.process_on_nodes} slots per node of {bundle} each "
            f"({self.strategy}); the cluster did not provide them within {timeout_s} s. It has the "
            f"nodes {nodes}, of which {free or 'nothing'} is free now. Ask for less, or raise timeout_s."
        )

    def slots(self) -> list[Slot]:
        """The slots in rank order."""
        groups = self.get_placement_groups()
        return [
            Slot(group, bundle, node)
            for node, (group, count) in enumerate(zip(groups, self.process_on_nodes, strict=True))
            for bundle in range(count)
        ]

    @property
    def is_reserved(self) -> bool:
        """True while the pool holds resources of the cluster."""
        return self._groups is not None

    def release(self) -> None:
        """Give the placement groups back; workers in them are killed. They are made anew when needed."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups or ():
            remove_placement_group(group)
        self._groups = None
        self._required = {}

    def split(self, sizes: Sequence[int] | int) -> list[SubResourcePool]:
        """Consecutive sub-pools of the given sizes, or of one size; they must use up the pool."""
        return split_resource_pool(self, sizes)


class SubResourcePool(RayResourcePool):
    """Some slots of other pools. It holds no resources of its own."""

    def __init__(self, parts: Sequence[tuple[RayResourcePool, int, int]]) -> None:
        """Slots `start:stop` of each pool, given as `(pool, start, stop)`, in that order."""
        self._parts = list(parts)
        first = parts[0][0]
        counts: dict[tuple[int, int], int] = {}
        for number, (pool, start, stop) in enumerate(parts):
            if not 0 <= start < stop <= pool.world_size:
                raise PoolError(f"slots {start}:{stop} of a pool of {pool.world_size} slots.")
            for node in _nodes(pool)[start:stop]:
                counts[(number, node)] = counts.get((number, node), 0) + 1
        super().__init__(
            list(counts.values()),
            use_gpu=first.use_gpu,
            name_prefix=first.name_prefix,
            max_colocate_count=min(pool.max_colocate_count for pool, _, _ in parts),
            cpus_per_slot=first.cpus_per_slot,
            resources_per_slot=first.resources_per_slot,
            timeout_s=first.timeout_s,
        )

    def require(self, resources: dict[str, float]) -> None:
        """As the pools it is part of: their slots are all alike."""
        for pool in {id(pool): pool for pool, _, _ in self._parts}.values():
            pool.require(resources)

    def wants_gpu(self) -> bool:
        """As the pools it is part of."""
        return self._parts[0][0].wants_gpu()

    def get_placement_groups(self, timeout_s: float | None = None) -> list[Any]:
        """The placement groups that its slots lie in."""
        seen = {id(slot.placement_group): slot.placement_group for slot in self.slots()}
        return list(seen.values())

    def slots(self) -> list[Slot]:
        """The slots in rank order; nodes are counted anew."""
        chosen = [
            ((number, slot.node), slot)
            for number, (pool, start, stop) in enumerate(self._parts)
            for slot in pool.slots()[start:stop]
        ]
        order: dict[tuple[int, int], int] = {}
        return [
            Slot(slot.placement_group, slot.bundle, order.setdefault(key, len(order))) for key, slot in chosen
        ]

    @property
    def is_reserved(self) -> bool:
        """True while the pools it is part of hold resources."""
        return all(pool.is_reserved for pool, _, _ in self._parts)

    def release(self) -> None:
        """Does nothing: the resources belong to the pools it is part of."""


def _nodes(pool: RayResourcePool) -> list[int]:
    return [node for node, count in enumerate(pool.process_on_nodes) for _ in range(count)]


def split_resource_pool(pool: RayResourcePool, sizes: Sequence[int] | int) -> list[SubResourcePool]:
    """Consecutive sub-pools; `sizes` must add up to the pool, an int must divide it."""
    if isinstance(sizes, int):
        if sizes < 1 or pool.world_size % sizes:
            raise PoolError(f"cannot split {pool.world_size} slots into sub-pools of {sizes}.")
        sizes = [sizes] * (pool.world_size // sizes)
    if sum(sizes) != pool.world_size or min(sizes) < 1:
        raise PoolError(
            f"sub-pools of {list(sizes)} slots do not add up to the {pool.world_size} of the pool."
        )
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [SubResourcePool([(pool, start, start + size)]) for start, size in zip(starts, sizes, strict=True)]


def merge_resource_pool(*pools: RayResourcePool) -> SubResourcePool:
    """One pool over all slots of several, in order. They must offer the same kind of slot."""
    if not pools:
        raise PoolError("merge_resource_pool needs at least one pool.")
    kinds = [(pool.use_gpu, pool.cpus_per_slot, pool.resources_per_slot) for pool in pools]
    if any(kind != kinds[0] for kind in kinds):
        raise PoolError(f"pools with different slots (use_gpu, CPUs, others) cannot be merged: {kinds}.")
    return SubResourcePool([(pool, 0, pool.world_size) for pool in pools])
