"""`RayWorkerGroup`: workers as Ray actors in the slots of a pool."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rl_controller.batches import is_heavy
from rl_controller.decorator import Registration, registered_methods
from rl_controller.errors import CallError, DispatchError, PlacementTimeoutError, UnknownRoleError
from rl_controller.host import REF_PREFIX, BoundPiece, CallSpec, Description, door, hosted, plain_spec
from rl_controller.init_args import RayClassWithInitArgs
from rl_controller.rank_info import RankInfo
from rl_controller.ray_calls import CallContext, CallReferences
from rl_controller.resource_pool import RayResourcePool, Slot
from rl_controller.worker_group import WorkerGroup

if TYPE_CHECKING:
    from rl_protocol import DataProtoFuture, TransferCount

logger = logging.getLogger(__name__)

WorkerEnv = Mapping[str, str] | Callable[[int], Mapping[str, str]]
_CPU_ENV = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class RayWorkerGroup(WorkerGroup):
    """One Ray actor per slot of a pool, called as one."""

    def __init__(
        self,
        resource_pool: RayResourcePool,
        ray_cls_with_init: RayClassWithInitArgs,
        name_prefix: str | None = None,
        worker_env: WorkerEnv | None = None,
        log_dir: str | None = None,
        timeout_s: float | None = None,
        detached: bool = False,
        namespace: str | None = None,
        start_timeout_s: float = 300.0,
        grace_s: float = 30.0,
        master_ports: Sequence[int] = (0,),
    ) -> None:
        """Start the workers and wait until each has run its constructor.

        Args:
            resource_pool: where they run; reserved now if it was not.
            ray_cls_with_init: the class and its arguments, or a `FusedWorker`.
            name_prefix: name of the group; actors are named `<name_prefix>-<rank>`. Default: unique.
            worker_env: environment variables set before the worker process imports anything; a function
                of the rank gives each worker its own.
            log_dir: send each worker's output to `<log_dir>/<name_prefix>-<rank>.log`.
            timeout_s: limit of every blocking call; None: none.
            detached: the workers outlive this driver; find them by `from_detached`.
            namespace: Ray namespace of the names; default: the driver's.
            start_timeout_s: limit for the workers to start.
            grace_s: after one rank failed, how long to wait for the others.
            master_ports: ports to try for the rendezvous on rank 0; 0: any.

        Raises:
            PlacementTimeoutError: the cluster did not provide the resources in time.
            WorkerMethodError: a constructor raised.
        """
        self._setup: dict[str, Any] = {  # what `rebuild` starts the next group with
            "resource_pool": resource_pool,
            "ray_cls_with_init": ray_cls_with_init,
            "name_prefix": name_prefix,
            "worker_env": worker_env,
            "log_dir": log_dir,
            "timeout_s": timeout_s,
            "detached": detached,
            "namespace": namespace,
            "start_timeout_s": start_timeout_s,
            "grace_s": grace_s,
            "master_ports": master_ports,
        }
        self.resource_pool: RayResourcePool | None = resource_pool
        self.ray_cls_with_init: RayClassWithInitArgs | None = ray_cls_with_init
        self.timeout_s, self.grace_s = timeout_s, grace_s
        self._made_pool = not resource_pool.is_reserved
        self._role_methods = _role_methods(ray_cls_with_init)
        self.nodes: list[str] = []
        self.workers: list[Any] = []
        name = name_prefix or f"{ray_cls_with_init.worker_class.__name__}-{uuid.uuid4().hex[:8]}"
        resource_pool.require(ray_cls_with_init.resources)
        slots = resource_pool.slots()
        super().__init__(name, len(slots), "", registered_methods(ray_cls_with_init.worker_class))
        self._start(slots)

    # --- starting ---------------------------------------------------------------------------------------

    def _start(self, slots: list[Slot]) -> None:
        actor_class: Any = ray.remote(hosted(self._setup["ray_cls_with_init"].worker_class))
        infos = _rank_infos(slots, self.name)
        self.workers = [
            self._create(actor_class, slot, info) for slot, info in zip(slots, infos, strict=True)
        ]
        ranks = list(range(self.world_size))
        context = self._context("__init__", self._setup["start_timeout_s"])
        try:
            log_paths = [self._log_path(rank) for rank in ranks]
            prepared = [
                w._rl_prepare.remote(*place) for w, *place in zip(self.workers, infos, log_paths, strict=True)
            ]
            context.gather(ranks, prepared)
            address = None
            if self.world_size > 1:
                ports = tuple(self._setup["master_ports"])
                (address,) = context.gather([0], [self.workers[0]._rl_bind.remote(ports)])
            self.nodes = context.gather(ranks, [w._rl_construct.remote(address) for w in self.workers])
        except CallError as error:
            self.shutdown()
            if isinstance(error, TimeoutError):
                raise PlacementTimeoutError(
                    f"ranks {list(error.ranks)} of group {self.name!r} did not start within "
                    f"{self._setup['start_timeout_s']} s; their slots may be taken (max_colocate_count is "
                    f"{self._setup['resource_pool'].max_colocate_count}), or a constructor hangs."
                ) from error
            raise

    def _create(self, actor_class: Any, slot: Slot, info: RankInfo) -> Any:
        pool, init = self._setup["resource_pool"], self._setup["ray_cls_with_init"]
        share = 1 / pool.max_colocate_count
        gpu = pool.wants_gpu()
        own_env = self._setup["worker_env"] or {}
        extra = own_env(info.rank) if callable(own_env) else own_env
        env = ({} if gpu else _CPU_ENV) | info.as_env() | dict(extra)
        options: dict[str, Any] = {
            "name": f"{self.name}-{info.rank}",
            "num_cpus": _floor4(share * pool.cpus_per_slot),
            "num_gpus": _floor4(share) if gpu else 0,
            "resources": {k: _floor4(share * v) for k, v in pool.resources_per_slot.items()} | init.resources,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                slot.placement_group,
                placement_group_bundle_index=slot.bundle,
                placement_group_capture_child_tasks=False,
            ),
            "lifetime": "detached" if self._setup["detached"] else None,
            "namespace": self._setup["namespace"],
        } | {key: value for key, value in init.options.items() if key != "runtime_env"}
        given = init.options.get("runtime_env") or {}
        runtime_env = {**given, "env_vars": {**env, **given.get("env_vars", {})}}
        return actor_class.options(**options, runtime_env=runtime_env).remote(*init.args, **init.kwargs)

    def _log_path(self, rank: int) -> str | None:
        folder = self._setup["log_dir"]
        return folder and os.path.join(os.path.abspath(folder), f"{self.name}-{rank}.log")

    @classmethod
    def from_detached(
        cls,
        name_prefix: str,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        namespace: str | None = None,
        timeout_s: float | None = None,
        grace_s: float = 30.0,
    ) -> RayWorkerGroup:
        """Attach to a detached group by its name, from any driver of the cluster.

        The methods are asked of the workers unless the class is given.
        """
        group = cls.__new__(cls)
        try:
            first = ray.get_actor(f"{name_prefix}-0", namespace)
        except ValueError as error:
            raise UnknownRoleError(
                f"no actor {name_prefix}-0 in namespace {namespace!r}: no detached group has that name there."
            ) from error
        described: Description = ray.get([first._rl_describe.remote()])[0]
        world_size = described.info.world_size
        group.workers = [
            first,
            *(ray.get_actor(f"{name_prefix}-{r}", namespace) for r in range(1, world_size)),
        ]
        group._setup = {}
        group.resource_pool, group.ray_cls_with_init, group._made_pool = None, ray_cls_with_init, False
        group.timeout_s, group.grace_s = timeout_s, grace_s
        group._role_methods = {k: v for k, v in described.roles.items() if k}
        methods = (
            described.roles[""]
            if ray_cls_with_init is None
            else registered_methods(ray_cls_with_init.worker_class)
        )
        group.nodes = [""] * world_size
        WorkerGroup.__init__(group, name_prefix, world_size, "", methods)
        found = ray.get([worker._rl_describe.remote() for worker in group.workers])
        group.nodes = [description.node for description in found]
        return group

    # --- calling ----------------------------------------------------------------------------------------

    def _context(self, method: str, timeout_s: float | None = None) -> CallContext:
        limit = self.timeout_s if timeout_s is None else timeout_s
        return CallContext(self.name, method, self._place, limit, self.grace_s, self._release_peers)

    def _place(self, rank: int) -> str:
        node = self.nodes[rank] if self.nodes else ""
        return f"node {node[:12]}" if node else "not yet placed"

    def _release_peers(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.workers[rank]._rl_release_peers.remote()

    def _spread(self, method: str, mode: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Values that several workers get are put into the store once."""
        spread, named = super()._spread(method, mode, args, kwargs)
        if self.world_size == 1:
            return spread, named
        return tuple(_shared(values) for values in spread), {
            key: _shared(values) for key, values in named.items()
        }

    def _submit(self, rank: int, spec: CallSpec, args: list[Any], kwargs: dict[str, Any]) -> Any:
        refs: list[Any] = []
        sent = [_as_sent(value, refs) for value in args]
        named = {key: _as_sent(value, refs) for key, value in kwargs.items()}
        named |= {f"{REF_PREFIX}{number}": ref for number, ref in enumerate(refs)}
        registration = self._registered.get(spec.method)
        if registration is not None and spec == plain_spec(spec.method, spec.role, registration):
            return getattr(self.workers[rank], door(spec)).remote(*sent, **named)
        call = self.workers[rank]._rl_call
        if spec.head:
            call = call.options(num_returns=2)
        return call.remote(spec.encode(), *sent, **named)

    def _results(self, method: str, ranks: Sequence[int], calls: list[Any]) -> list[Any]:
        return self._context(method).gather(ranks, calls)

    def _references(self, method: str, ranks: Sequence[int], calls: list[Any]) -> CallReferences:
        return CallReferences(self._context(method), ranks, calls)

    def _future(
        self, method: str, ranks: Sequence[int], counted: Sequence[int], calls: list[Any]
    ) -> DataProtoFuture:
        from rl_controller.call_store import CallStore
        from rl_protocol import DataProtoFuture

        results = dict(zip(ranks, calls, strict=True))
        store = CallStore(
            self._context(method), {ref: rank for rank, pair in results.items() for ref in pair}
        )
        return DataProtoFuture(
            [results[rank][0] for rank in counted], heads=[results[rank][1] for rank in counted], store=store
        )

    def _mesh_infos(self) -> list[dict[str, tuple[int, bool]]]:
        ranks = list(range(self.world_size))
        calls = [worker._rl_mesh.remote(self.role) for worker in self.workers]
        return self._context("_mesh_info").gather(ranks, calls)

    def transfer_counts(self) -> list[TransferCount]:
        """Bytes of batches that each worker has moved since it started, in rank order."""
        ranks = list(range(self.world_size))
        return self._context("transfer_counts").gather(ranks, [w._rl_transfer.remote() for w in self.workers])

    # --- roles ------------------------------------------------------------------------------------------

    def _roles(self) -> dict[str, dict[str, Registration]]:
        return self._role_methods

    def _with_role(self, role: str, methods: dict[str, Registration]) -> RayWorkerGroup:
        group = type(self).__new__(type(self))
        group.__dict__.update({k: v for k, v in self.__dict__.items() if k not in self._registered})
        WorkerGroup.__init__(group, f"{self.name}.{role}", self.world_size, role, methods)
        return group

    # --- living and dying -------------------------------------------------------------------------------

    def alive(self) -> list[bool]:
        """For each rank, whether its actor lives, from the cluster's records: a busy worker is alive."""
        from ray._private.state import actors

        states = [actors(worker._actor_id.hex()) for worker in self.workers]
        return [bool(state) and state["State"] != "DEAD" for state in states]

    def rebuild(self) -> RayWorkerGroup:
        """End what is left of the group and start it anew in the same pool, with the same arguments.

        The worker's state starts from its constructor. Returns the new group; this one is of no use after.
        """
        if not self._setup:
            raise DispatchError(
                f"group {self.name!r} was attached to, not started here: start it where it was made."
            )
        self._kill()
        deadline = time.monotonic() + self._setup["start_timeout_s"]
        while any(self.alive()) and time.monotonic() < deadline:  # until then their names are taken
            time.sleep(0.05)
        return type(self)(**self._setup)

    def _kill(self) -> None:
        for worker in self.workers:
            ray.kill(worker)

    def shutdown(self) -> None:
        """Kill the workers; give back the pool's placement groups if this group reserved them."""
        self._kill()
        if self._made_pool and self.resource_pool is not None:
            self.resource_pool.release()


def _role_methods(init: RayClassWithInitArgs) -> dict[str, dict[str, Registration]]:
    classes: dict[str, type] = getattr(init.worker_class, "_rl_role_classes", {})
    return {role: registered_methods(cls) for role, cls in classes.items()}


def _rank_infos(slots: Sequence[Slot], group: str) -> list[RankInfo]:
    nodes = [slot.node for slot in slots]
    return [
        RankInfo(rank, len(nodes), nodes[:rank].count(node), nodes.count(node), group)
        for rank, node in enumerate(nodes)
    ]


def _floor4(value: float) -> float:
    """Ray counts resources in ten-thousandths: round down, so that a slot holds all its shares."""
    return int(value) if value >= 1 and value == int(value) else int(value * 10_000 + 1e-9) / 10_000


def _shared(values: Sequence[Any]) -> Sequence[Any]:
    """Replace a heavy value that several workers get by one reference."""
    counts: dict[int, int] = {}
    for value in values:
        counts[id(value)] = counts.get(id(value), 0) + 1
    if len(counts) == len(values):
        return values
    refs = {
        id(v): ray.put(v) for v in {id(v): v for v in values}.values() if counts[id(v)] > 1 and is_heavy(v)
    }
    return [refs.get(id(value), value) for value in values]


def _as_sent(value: Any, refs: list[Any]) -> Any:
    """A piece of a future travels as its recipe, its references as arguments that Ray resolves itself."""
    sources = getattr(value, "sources", None)
    if sources is None or not hasattr(value, "recipe"):
        return value
    located = [source.store.locate(source.ref) for source in sources]
    refs.extend(located)
    return BoundPiece(value.recipe, len(refs) - len(located), len(located))
