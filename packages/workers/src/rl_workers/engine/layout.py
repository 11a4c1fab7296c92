"""Where a rank stands: its device, its place in the group, and which rows of a batch it computes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """``auto`` is the GPU of this local rank where there is one, and the CPU elsewhere."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    return torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))


def backend_for(device: torch.device) -> str:
    """The process group's back end: gloo for CPU tensors, nccl besides where the model is on a GPU."""
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"


@dataclass(frozen=True)
class Layout:
    """A rank's place among those of one engine; an engine adds the groups by which it cuts the model.

    Ranks of equal ``dp_rank`` compute one model together and receive the same rows. The result of one of
    them stands for all (``is_collect``): a rank that holds it. ``sp_size`` of them share each sequence, so
    that a budget of tokens per rank is worth so many times as much.
    """

    device: torch.device
    rank: int
    world_size: int
    dp_rank: int
    is_collect: bool
    sp_size: int

    def max_over_ranks(self, value: int) -> int:
        """The largest value of any rank."""
        found = torch.tensor(value, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)
