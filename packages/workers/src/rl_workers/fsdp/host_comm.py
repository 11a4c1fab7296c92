"""FSDP's collectives without a GPU: ranks of one host exchange through memory that all of them map.

gloo would send every byte through a socket: a small model's gradients take as long on the way as a quarter of
its backward pass. Here a rank writes its part where the others read it, and gloo only says when.

FSDP asks for a buffer, fills it, and calls the collective. Two buffers take turns, so one barrier is enough:
a rank that has passed it knows that all have called this collective, so that nobody reads what the one before
last left. (FSDP copies a gathered layer out before it asks for the next one.)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rl_rollout.weights.host_memory import SharedBuffer, TurnTaking
from rl_workers.errors import CollectiveError

logger = logging.getLogger(__name__)


def use_host_memory(modules: Sequence[FSDPModule], group: dist.ProcessGroup) -> bool:
    """Let FSDP modules exchange shards through memory; False if the ranks can't share any.

    Collective over ``group``, whose ranks hold the shards.
    """
    if not SharedBuffer(group).reserve(1):
        logger.info("the ranks share no memory (several hosts?): weights and gradients go through gloo")
        return False
    gather, scatter = HostAllGather(group), HostReduceScatter(group)
    for module in modules:
        module.set_custom_all_gather(cast(Any, gather))
        module.set_custom_reduce_scatter(cast(Any, scatter))
    return True


def reduce_in_place(modules: Sequence[FSDPModule]) -> None:
    """Spare a model that is not sharded the copy of its gradients."""
    for module in modules:
        module.set_custom_reduce_scatter(cast(Any, InPlaceReduction()))


class HostAllGather:
    """All ranks write into the first rank's block, each its shard, and so have the whole."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._buffers = TurnTaking(group)
        self._given = torch.empty(0)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The block in which this rank will write its part."""
        self._given = self._buffers.next(size[0] * dtype.itemsize).block(0, size[0], dtype)
        return self._given

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        """Wait until all have written.

        Raises:
            CollectiveError: this rank's part was not written into the block that was given last.
        """
        buffer, size = self._buffers.current, input_tensor.numel()
        whole = size * dist.get_world_size(buffer.group)
        _expect(whole == output_tensor.numel() == self._given.numel(), "all-gather: parts that are no whole")
        _expect(_same(output_tensor, self._given), "all-gather: not into the memory that was allocated last")
        part = self._given[size * buffer.rank :]
        _expect(_same(input_tensor, part), "all-gather: a part that was not written in its place")
        dist.barrier(buffer.group)


class HostReduceScatter:
    """Each rank writes its gradient into its block and sums its shard over the blocks of all.

    FSDP asks for the input and, once that is filled, for the output, which is one rank's part of it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._buffers = TurnTaking(group)
        self._ranks = dist.get_world_size(group)
        self._given = torch.empty(0)
        self._filled = False

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """This rank's block, and at the second call memory of its own: the gradient stays in that.

        Raises:
            CollectiveError: the second size is not one rank's part of the first.
        """
        self._filled = not self._filled
        if not self._filled:
            sizes = f"{self._given.numel()}, then {size[0]} elements for {self._ranks} ranks"
            _expect(size[0] * self._ranks == self._given.numel(), f"reduce-scatter: allocated {sizes}")
            return torch.empty(*size, dtype=dtype, device=device)
        buffer = self._buffers.next(size[0] * dtype.itemsize)
        self._given = buffer.block(buffer.rank, size[0], dtype)
        return self._given

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        """Sum this rank's part of all blocks, in the order of ranks.

        Raises:
            CollectiveError: the input is not the block that was given last, or no output was asked for.
        """
        buffer, size, dtype = self._buffers.current, input_tensor.numel(), input_tensor.dtype
        _expect(not self._filled, "reduce-scatter: no output was allocated")
        whole = size == self._given.numel() and _same(input_tensor, self._given)
        _expect(whole, "reduce-scatter: not of the memory that was allocated last")
        _expect(output_tensor.numel() * self._ranks == size, "reduce-scatter: an output of another size")
        dist.barrier(buffer.group)
        first, second, *others = (
            buffer.block(rank, size, dtype).chunk(self._ranks)[buffer.rank] for rank in range(self._ranks)
        )
        torch.add(first, second, out=output_tensor)
        for part in others:
            output_tensor.add_(part)


class InPlaceReduction:
    """FSDP's reduce-scatter for one rank: what it would copy the gradients to is where they are.

    FSDP asks for the input and, once that is filled, for an output of the same size.
    """

    def __init__(self) -> None:
        self._input: Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A new buffer, and the same one at the second call.

        Raises:
            CollectiveError: the second size is another.
        """
        given, self._input = self._input, None
        if given is None:
            given = self._input = torch.empty(*size, dtype=dtype, device=device)
        _expect(given.shape == (*size,), f"reduction in place: allocated {tuple(given.shape)}, then {size}")
        return given

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        """Nothing to sum and nobody to send to."""
        output_tensor.copy_(input_tensor)


def _same(found: Tensor, wanted: Tensor) -> bool:
    return found.numel() == 0 or found.data_ptr() == wanted.data_ptr()


def _expect(ok: bool, what: str) -> None:
    """torch does not promise the order in which FSDP calls: another one must not sum wrong memory."""
    if not ok:
        raise CollectiveError(
            f"{what}: FSDP of torch {torch.__version__} does not call its collectives in the order that "
            "rl-workers knows; install a release of torch that rl-workers was tested with"
        )
