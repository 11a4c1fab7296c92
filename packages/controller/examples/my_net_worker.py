"""A `MyNetWorker` as a Ray actor: each worker computes the loss on its half of the data.

Run: python my_net_worker.py
"""

from __future__ import annotations

import ray
import torch
from torch import nn

from rl_controller import Dispatch, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker, register
from rl_protocol import DataProto


@ray.remote
class MyNetWorker(Worker):
    """A small net; the same weights on each rank."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(width, 1)

    @register(Dispatch.DP_COMPUTE_PROTO, read_only=True)
    def compute_loss(self, data: DataProto) -> DataProto:
        """Squared error of each row: `x` `[B, width]` and `y` `[B]` to `loss` `[B]`."""
        assert data.batch is not None
        with torch.no_grad():
            error = self.net(data.batch["x"]).squeeze(-1) - data.batch["y"]
        rank = torch.full((len(data),), self.rank)
        return DataProto.from_dict({"loss": error.square(), "rank": rank})


def main() -> DataProto:
    """Two workers, ten rows."""
    pool = RayResourcePool([2], use_gpu=False)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(cls=MyNetWorker, width=3))
    data = DataProto.from_dict({"x": torch.ones(10, 3), "y": torch.arange(10.0)})
    losses: DataProto = group.compute_loss(data)
    group.shutdown()
    return losses


if __name__ == "__main__":
    ray.init("local", num_cpus=2, include_dashboard=False)
    result = main()
    assert result.batch is not None
    print(result.batch["loss"].mean(), result.batch["rank"].tolist())  # noqa: T201
