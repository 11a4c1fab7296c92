"""`Worker`: the base class of what runs on each rank."""

from __future__ import annotations

import importlib
import socket
from datetime import timedelta
from typing import Any

from rl_controller.errors import RendezvousError
from rl_controller.rank_info import RankInfo
from rl_controller.rendezvous import MasterSocket, connect


class WorkerHelper:
    """What a worker can ask about its place: ranks, sizes, address."""

    _rl_rank_info: RankInfo | None = None

    @property
    def rank_info(self) -> RankInfo:
        """Place in the group; from the environment if no group started this object."""
        return self._rl_rank_info or RankInfo.from_env()

    @property
    def rank(self) -> int:
        """Rank in the group, 0 to `world_size - 1`."""
        return self.rank_info.rank

    @property
    def world_size(self) -> int:
        """Number of workers in the group."""
        return self.rank_info.world_size

    @property
    def local_rank(self) -> int:
        """Rank among the group's workers on this node."""
        return self.rank_info.local_rank

    @property
    def local_world_size(self) -> int:
        """Number of the group's workers on this node."""
        return self.rank_info.local_world_size

    def get_node_ip(self) -> str:
        """Address of this node as the other nodes see it."""
        return node_ip()

    def get_free_port(self) -> int:
        """A port that is free now; bind it soon, and be ready to ask again."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])


class Worker(WorkerHelper):
    """Base class of workers. Subclasses mark methods for the controller with `@register`.

    A subclass need not call `super().__init__()`: the group tells an object its rank before `__init__` runs.
    """

    def init_process_group(self, backend: str = "gloo", timeout_s: float = 600.0) -> None:
        """Join the group's `torch.distributed` process group; one per process, however many roles it has.

        Raises:
            RendezvousError: a process group of another backend or size exists already.
        """
        dist: Any = importlib.import_module("torch.distributed")

        info = self.rank_info
        if dist.is_initialized():
            if dist.get_world_size() != info.world_size or str(dist.get_backend()) not in backend:
                raise RendezvousError(
                    f"there is a process group ({dist.get_backend()}, {dist.get_world_size()} ranks); "
                    f"asked for {backend}, {info.world_size} ranks."
                )
            return
        serve_master()
        store = dist.PrefixStore("rl_controller", connect(info, timeout_s))
        dist.init_process_group(
            backend,
            store=store,
            rank=info.rank,
            world_size=info.world_size,
            timeout=timedelta(seconds=timeout_s),
        )

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """Declare this rank's share under mesh dispatch: which rows it reads, and if its result counts."""
        meshes: dict[str, tuple[int, bool]] = self.__dict__.setdefault("_rl_meshes", {})
        meshes[mesh_name] = (int(dp_rank), bool(is_collect))

    def _mesh_info(self) -> dict[str, tuple[int, bool]]:
        """Every mesh this rank has registered: name -> (dp rank, is collected from)."""
        return dict(self.__dict__.get("_rl_meshes", {}))


def node_ip() -> str:
    """Address of this node in the Ray cluster, or the loopback address without one."""
    import ray

    if ray.is_initialized():
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return "127.0.0.1"


_process: dict[str, Any] = {}


def bind_master(ports: tuple[int, ...]) -> tuple[str, int]:
    """Bind this process's master socket (rank 0 of its group) and return its address."""
    master = MasterSocket(node_ip(), ports)
    _process["master"] = master
    return master.host, master.port


def serve_master() -> None:
    """If this process is the master, start serving the store."""
    master = _process.get("master")
    if isinstance(master, MasterSocket):
        master.serve()
