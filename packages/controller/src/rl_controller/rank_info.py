"""What a worker process knows about its place in the group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class RankInfo:
    """Place of one worker: ranks count from 0 over the group, local ranks restart on each node."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    group: str = ""
    master_addr: str = ""
    master_port: int = 0

    @classmethod
    def from_env(cls) -> RankInfo:
        """Read the usual variables; a process without them is a world of one."""
        env = os.environ
        return cls(
            int(env.get("RANK", 0)),
            int(env.get("WORLD_SIZE", 1)),
            int(env.get("LOCAL_RANK", 0)),
            int(env.get("LOCAL_WORLD_SIZE", 1)),
            env.get("RL_GROUP_NAME", ""),
            env.get("MASTER_ADDR", ""),
            int(env.get("MASTER_PORT", 0)),
        )

    def as_env(self) -> dict[str, str]:
        """The variables that torch and its friends read. The master is left out until it is known."""
        env = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "RL_GROUP_NAME": self.group,
        }
        if self.master_port:
            env |= {"MASTER_ADDR": self.master_addr, "MASTER_PORT": str(self.master_port)}
        return env


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables and restore what was there on leaving."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
