"""Worker classes that the tests share. Importable in worker processes; torch only where it is used."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from rl_controller import (
    Dispatch,
    Execute,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_dispatch_mode,
)


def _reversed_ranks(group: Any, *args: Any, **kwargs: Any) -> Any:
    size = group.world_size
    spread = [[value * 10 + size - 1 - rank for rank in range(size)] for value in args]
    return tuple(spread), {key: [value] * size for key, value in kwargs.items()}


REVERSED = register_dispatch_mode("LAB_REVERSED", _reversed_ranks, lambda group, outputs: sum(outputs))
WRONG = {"dispatch_fn": lambda group, x: ((x,), {}), "collect_fn": lambda group, outputs: outputs}


class Lab(Worker):
    """Methods in every mode."""

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.env_at_start = {
            k: os.environ.get(k) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
        }

    def add(self, x: int, y: int = 0) -> int:
        """Not registered: for `execute_*` only."""
        return self.base + self.rank + x + y

    @register(Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int, int, int]:
        return self.rank, self.world_size, self.local_rank, self.local_world_size

    @register(Dispatch.ONE_TO_ALL)
    def environment(self, *names: str) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in names}

    @register(Dispatch.ONE_TO_ALL)
    def receive(self, value: Any, k: Any = None) -> tuple[Any, Any]:
        return value, k

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    def receive_later(self, value: Any) -> Any:
        return value

    @register(Dispatch.ALL_TO_ALL)
    def scatter(self, value: Any, k: Any = None) -> tuple[Any, Any]:
        return value, k

    @register(Dispatch.DP_COMPUTE)
    def compute(self, value: int) -> int:
        return value + self.rank

    @register(Dispatch.RANK_ZERO)
    def only_first(self, x: int) -> int:
        return x + self.rank

    @register(Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def executed_on_first(self, x: int) -> int:
        return x + self.rank

    @register(Dispatch.RANK_ZERO, blocking=False)
    def only_first_later(self, x: int) -> int:
        return x + self.rank

    @register(REVERSED)
    def in_reverse(self, x: int, y: int = 0) -> int:
        return x + y

    @register(WRONG)
    def wrong_mode(self, x: int) -> int:
        return x

    @register(Dispatch.DP_COMPUTE_PROTO)
    def identity(self, batch: Any, other: Any = None) -> Any:
        return batch if other is None else other

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def identity_later(self, batch: Any) -> Any:
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False, read_only=True)
    def tag_later(self, batch: Any, name: str) -> Any:
        from rl_protocol import DataProto

        return DataProto.from_dict({name: batch.batch["x"] + 1}, meta_info={"metrics": {"rows": len(batch)}})

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False, read_only=True)
    def grow_later(self, batch: Any, width: int) -> Any:
        import torch

        from rl_protocol import DataProto

        return DataProto.from_dict({"x": torch.zeros(len(batch), width)})

    @register(Dispatch.DP_COMPUTE_METRIC)
    def count(self, batch: Any) -> dict[str, int]:
        return {"rank": self.rank, "rows": len(batch)}

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, function: Any, batch: Any) -> Any:
        return function(batch)

    @register(Dispatch.DP_COMPUTE_PROTO)
    def overwrite(self, batch: Any) -> Any:
        batch.batch["x"] += 1000 + self.rank
        for column in batch.non_tensor_batch.values():
            for item in column:
                if isinstance(item, dict):
                    item["a"] += 1
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def overwrite_all(self, batch: Any, wait_s: float = 0.0) -> float:
        batch.batch["x"] += 1 + self.rank
        time.sleep(wait_s)
        return float(batch.batch["x"].sum())

    @register(Dispatch.ONE_TO_ALL)
    def write_array(self, array: Any) -> float:
        array += 1
        return float(array.sum())

    @register(Dispatch.ONE_TO_ALL)
    def keep(self, batch: Any) -> None:
        self.kept = batch

    @register(Dispatch.DP_COMPUTE_PROTO)
    def give(self, batch: Any) -> Any:
        """Returns an object that the worker goes on using."""
        self.kept = batch
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def change_kept(self) -> None:
        self.kept.batch["x"] += 5

    @register(Dispatch.ONE_TO_ALL)
    def fail(self, rank: int = 0) -> int:
        if self.rank == rank:
            raise ValueError(f"bad luck on {self.rank}")
        return self.rank

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def fail_later(self, batch: Any, rank: int = 0) -> Any:
        if self.rank == rank:
            raise KeyError("lost key")
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO)
    def half_a_batch(self, batch: Any) -> Any:
        return batch if self.rank == 0 else 3

    @register(Dispatch.ONE_TO_ALL)
    def die(self, rank: int = 0) -> int:
        if self.rank == rank:
            os._exit(1)
        return self.rank

    @register(Dispatch.ONE_TO_ALL)
    def nap(self, seconds: float, rank: int = 0) -> int:
        if self.rank == rank:
            time.sleep(seconds)
        return self.rank

    def slow_or_raise(self) -> int:
        if self.rank == 1:
            raise ValueError("early")
        time.sleep(2.5)
        return 0

    @register(Dispatch.ONE_TO_ALL)
    def all_reduce(self, raise_on: int = -1) -> float:
        self.init_process_group("gloo", timeout_s=120)
        import torch
        import torch.distributed as dist

        if self.rank == raise_on:
            raise ValueError("not joining")
        total = torch.tensor([float(self.rank + 1)])
        dist.all_reduce(total)
        return float(total)


class PlainEnv(Worker):
    """Uses torch's own rendezvous, as programs written elsewhere do."""

    @register(Dispatch.ONE_TO_ALL)
    def world(self) -> tuple[int, int]:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", init_method="env://")
        return dist.get_rank(), dist.get_world_size()


class TensorParallel(Lab):
    """Ranks `dp * tp + t`: tensor-parallel peers are consecutive."""

    @register(Dispatch.ONE_TO_ALL)
    def build(self, tp: int, mesh: str = "model") -> None:
        self._register_dispatch_collect_info(mesh, self.rank // tp, self.rank % tp == tp - 1)

    @register(make_nd_compute_dataproto_dispatch_fn("model"))
    def stamp(self, batch: Any) -> Any:
        batch.batch["seen_by"] = batch.batch["x"] * 0 + self.rank
        self.seen = batch.batch["x"].flatten().tolist()
        return batch

    @register(make_nd_compute_dataproto_dispatch_fn("model"), blocking=False, read_only=True)
    def stamp_later(self, batch: Any) -> Any:
        from rl_protocol import DataProto

        return DataProto.from_dict({"y": batch.batch["x"] * 2})

    @register(make_nd_compute_dataproto_dispatch_fn("nobody"))
    def unbuilt(self, batch: Any) -> Any:
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def what_i_saw(self) -> list[float]:
        return list(self.seen)


class Talker(Worker):
    """Async methods: two calls meet only if they run at the same time."""

    def __init__(self) -> None:
        self.waiting: asyncio.Event | None = None

    @register(Dispatch.ONE_TO_ALL, blocking=False)
    async def wait(self) -> str:
        self.waiting = self.waiting or asyncio.Event()
        await asyncio.wait_for(self.waiting.wait(), 20)
        return "woken"

    @register(Dispatch.ONE_TO_ALL)
    async def wake(self) -> str:
        while self.waiting is None:
            await asyncio.sleep(0.01)
        self.waiting.set()
        return "done"

    @register(Dispatch.ONE_TO_ALL)
    async def double(self, x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    @register(Dispatch.DP_COMPUTE_PROTO)
    async def identity(self, batch: Any) -> Any:
        await asyncio.sleep(0)
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def triple(self, x: int) -> int:
        return 3 * x


class Run(Worker):
    """One method, for roles with confusable names."""

    @register(Dispatch.ONE_TO_ALL)
    def run(self) -> str:
        return f"run {self.rank}"


class Quiet(Worker):
    """Another method under another role."""

    @register(Dispatch.ONE_TO_ALL)
    def rest(self) -> str:
        return "rest"

    @register(Dispatch.ONE_TO_ALL)
    def group_rank(self) -> int:
        self.init_process_group("gloo")
        import torch.distributed as dist

        return int(dist.get_rank())


class NotAWorker:
    """A plain class: it need not derive from Worker."""

    def __init__(self, start: int) -> None:
        self.start = start

    def bump(self, by: int) -> int:
        self.start += by
        return self.start


class Broken(Worker):
    """Its constructor raises on one rank."""

    def __init__(self, rank: int) -> None:
        if self.rank == rank:
            raise ValueError("cannot be built")


class Chatty(Worker):
    """Writes to its standard output."""

    @register(Dispatch.ONE_TO_ALL)
    def say(self, text: str) -> None:
        os.write(1, f"{text} {self.rank}\n".encode())
