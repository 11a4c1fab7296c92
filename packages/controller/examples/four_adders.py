"""Four workers add: `execute_all_async("add", x=10)`.

Run: python four_adders.py
"""

from __future__ import annotations

import ray

from rl_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Worker


@ray.remote
class Adder(Worker):
    """Holds a number."""

    def __init__(self, value: int) -> None:
        self.value = value

    def add(self, x: int) -> int:
        """The sum of the number, the argument and the rank."""
        return self.value + self.rank + x


def main() -> list[int]:
    """Start four workers, call them without waiting, then wait."""
    group = RayWorkerGroup(RayResourcePool([4], use_gpu=False), RayClassWithInitArgs(cls=Adder, value=2))
    output = group.execute_all_async("add", x=10)
    results: list[int] = ray.get(output)
    group.shutdown()
    return results


if __name__ == "__main__":
    ray.init("local", num_cpus=4, include_dashboard=False)
    print(main())  # noqa: T201
