"""Memory that ranks of one host all map: what one of them writes, the others read where it is.

gloo would send every byte through a socket, and each rank would keep a copy of its own.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

logger = logging.getLogger(__name__)

_TOKEN = 64  # bytes at the start of a mapping that say whose it is; keeps what follows aligned


class SharedBuffer:
    """A block of memory of each rank of `group`, mapped by all of them.

    The blocks are anonymous files: no name is left behind, and their only limit is the memory's.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self._blocks: list[Tensor] = []

    def reserve(self, size: int) -> bool:
        """Make room for `size` bytes on all ranks; False if one cannot map another's block."""
        if self._blocks and self._blocks[0].numel() >= size:
            return True
        token = secrets.token_bytes(_TOKEN)
        descriptor = os.memfd_create("rl-shared") if hasattr(os, "memfd_create") else -1
        if descriptor >= 0:
            os.write(descriptor, token)
            os.ftruncate(descriptor, _TOKEN + size)
        offers = cast(list[tuple[int, int, bytes]], [None] * dist.get_world_size(self.group))
        dist.all_gather_object(offers, (os.getpid(), descriptor, token), group=self.group)
        try:
            self._blocks = [_map_block(pid, number, theirs, size) for pid, number, theirs in offers]
        except OSError as error:
            logger.debug("no shared memory: %s", error)
            self._blocks = []
        failed = torch.tensor(0 if self._blocks else 1)
        dist.all_reduce(failed, op=dist.ReduceOp.MAX, group=self.group)
        if descriptor >= 0:
            os.close(descriptor)  # mapped by everyone, or of no use
        return not failed

    def block(self, rank: int, size: int, dtype: torch.dtype) -> Tensor:
        """The first `size` elements of a rank's block."""
        return self._blocks[rank][: size * dtype.itemsize].view(dtype)


def _map_block(pid: int, descriptor: int, token: bytes, size: int) -> Tensor:
    """Map the file that a process of this host has open; `OSError` if it isn't the one meant."""
    path = Path(f"/proc/{pid}/fd/{descriptor}")
    if not path.is_file() or _first_bytes(path) != token:
        raise OSError(f"{path} is not the file that another rank has open: it runs on another host")
    try:
        return torch.from_file(str(path), shared=True, size=_TOKEN + size, dtype=torch.uint8)[_TOKEN:]
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_TOKEN)


class TurnTaking:
    """Two buffers, used in turn."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.current, self._other = SharedBuffer(group), SharedBuffer(group)

    def next(self, size: int) -> SharedBuffer:
        """The buffer that was not used last, with room for `size` bytes."""
        self.current, self._other = self._other, self.current
        if not self.current.reserve(size):
            raise OSError(f"the ranks of this host could not share {size} bytes more of memory")
        return self.current


class HostRoom:
    """Where a stream of weights is put together: two buffers in turn for each group of ranks.

    A tensor in it is right until the second collective after the one that filled it, so at least until the
    next tensor of the stream is drawn. Kept between pushes, its pages are touched once.
    """

    def __init__(self) -> None:
        self._turns: dict[dist.ProcessGroup, TurnTaking | None] = {}

    def buffer(self, group: dist.ProcessGroup, size: int) -> Tensor | None:
        """`size` bytes that all ranks of `group` share, None where they can't. Collective over the group."""
        if group not in self._turns:
            shared = SharedBuffer(group).reserve(1)
            self._turns[group] = TurnTaking(group) if shared else None
        turns = self._turns[group]
        return None if turns is None else turns.next(size).block(0, size, torch.uint8)
