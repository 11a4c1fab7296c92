"""Actor and critic in one process per rank, written the old way and the new.

Run: python colocated_actor_critic.py
"""

from __future__ import annotations

import ray
import torch

from rl_controller import (
    Dispatch,
    FusedWorker,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    Worker,
    create_colocated_worker_cls,
    register,
)
from rl_protocol import DataProto


@ray.remote
class Actor(Worker):
    """Adds its rank to its rows, in place."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, data: DataProto) -> DataProto:
        """What a worker receives is its own to write."""
        assert data.batch is not None
        data.batch["a"] += self.rank
        return data


@ray.remote
class Critic(Worker):
    """Subtracts a number from its rows, in place."""

    def __init__(self, number: int) -> None:
        self.number = number

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def sub(self, data: DataProto) -> DataProto:
        """The driver's data stays as it is."""
        assert data.batch is not None
        data.batch["a"] -= self.number
        return data


def roles() -> dict[str, RayClassWithInitArgs]:
    """The two classes and their arguments."""
    return {"actor": RayClassWithInitArgs(cls=Actor), "critic": RayClassWithInitArgs(cls=Critic, number=10)}


def run(worker: RayClassWithInitArgs) -> tuple[list[float], list[float], list[float]]:
    """Ten zeros through both roles: the actor's result, the critic's, and the driver's input afterwards."""
    pool = RayResourcePool([2], use_gpu=False)
    group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=worker)
    spawned = group.spawn(prefix_set={"actor", "critic"})
    data = DataProto.from_dict({"a": torch.zeros(10)})
    added: DataProto = spawned["actor"].add(data)
    subtracted: DataProto = spawned["critic"].sub(data)
    group.shutdown()
    assert added.batch is not None and subtracted.batch is not None and data.batch is not None
    return added.batch["a"].tolist(), subtracted.batch["a"].tolist(), data.batch["a"].tolist()


def main() -> list[tuple[list[float], list[float], list[float]]]:
    """The program with `create_colocated_worker_cls`, which warns, and with `FusedWorker`."""
    return [run(create_colocated_worker_cls(class_dict=roles())), run(FusedWorker(roles()))]


if __name__ == "__main__":
    ray.init("local", num_cpus=2, include_dashboard=False)
    print(main())  # noqa: T201
