"""What a training engine is to the roles: all that they ask of one, whatever cuts its model into parts.

A role never calls the model. It hands over micro-batches with a function that takes each one's answer: of a
model that is cut into pipeline stages only the last stage has answers, and the engine alone knows when.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from rl_rollout import BaseRollout, BaseShardingManager
from rl_workers.compute.packing import PackedBatch
from rl_workers.engine.layout import Layout

Answer = tuple[Tensor, ...]
"""What a model's head says of a micro-batch: float32 tensors ``[N]``, one number per prediction of it.

A policy answers with log-probabilities, entropies and on request sums of squared probabilities, a value
model with values, a score model with scores.
"""

Reader = Callable[[PackedBatch, Answer], None]
"""Takes the answer to one micro-batch."""

LossFn = Callable[[PackedBatch, Answer], Tensor]
"""Makes of an answer the micro-batch's part of the *sum*, over micro-batches and ranks, that is the loss.

To a dummy micro-batch (``batch.is_dummy``) it returns the answer's sum times zero, so that a backward pass
and its collectives run.
"""


class HeadOptions(TypedDict, total=False):
    """What a policy's head can be asked; other heads take no options."""

    temperature: float
    """Divides the logits; 1."""
    entropy: bool
    """Compute entropies, else they are zeros; True."""
    entropy_grad: bool
    """Let a gradient through the entropies; False."""
    adapter: bool
    """Answer with the adapters on; off is the reference policy of an actor that trains adapters. True."""
    sum_pi_squared: bool
    """Answer with the vocabulary's sum of squared probabilities too; False."""


class TrainEngine(ABC):
    """A model with a head, spread over ranks, and if it is trained its optimizer and schedule.

    All methods are collective: every rank of the layout calls them, in the same order, with as many
    micro-batches (dummies, where it has nothing to do). Between calls parameters are in their parts, so that
    any method may follow any other.

    An engine is built, in ``roles/base.py``, of a head and the folder of a Hugging Face model, a layout, its
    own configuration of parallel forms and precision, values for parameters that the folder lacks, and if it
    is trained adapters, an optimizer's configuration and the norm at which gradients are clipped.
    """

    layout: Layout
    """This rank's place."""

    @property
    @abstractmethod
    def lr(self) -> float:
        """The learning rate of the next step; 0 of a model that is not trained."""

    @abstractmethod
    def evaluate(self, batches: Sequence[PackedBatch], read: Reader, **options: Unpack[HeadOptions]) -> None:
        """Run micro-batches without gradients and give each answer to ``read``.

        ``read`` is called on ranks that have answers, ``layout.is_collect`` ones among them, in the order of
        ``batches``, for dummies too.
        """

    @abstractmethod
    def train(self, batches: Sequence[PackedBatch], loss_fn: LossFn, **options: Unpack[HeadOptions]) -> float:
        """One optimizer step, and one of the schedule, on the sum of what ``loss_fn`` makes of the answers.

        ``loss_fn`` is called where ``read`` of :meth:`evaluate` would be. Gradients are summed over ranks,
        not averaged, and clipped.

        Returns:
            On every rank the norm of the global gradient before clipping. If it is not finite, weights and
            optimizer stay what they were.
        """

    @abstractmethod
    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """The model's present weights, one whole tensor after the other, on every rank.

        Under the names of its Hugging Face class, adapters merged, tied ones once, floating-point ones in
        ``dtype``. Every rank consumes the stream to its end; what it yields may be kept, but not written to.
        """

    @abstractmethod
    def sharding_manager(self, rollout: BaseRollout) -> BaseShardingManager:
        """A context around generation in this process: the present weights go into ``rollout`` on entry.

        Adapters go alone, where ``rollout`` was built to take them.
        """

    @abstractmethod
    def save(
        self, path: str, global_step: int, *, with_optimizer: bool = True, blocking: bool = True
    ) -> None:
        """Save weights, optimizer and schedule to a folder, which is replaced once the new one is whole.

        With ``blocking=False`` what is saved is the state of now, written in the background; the next
        ``save``, ``load`` or :meth:`wait` waits for it.

        Raises:
            CheckpointError: it could not be written; what was there before is untouched.
        """

    @abstractmethod
    def wait(self) -> None:
        """Wait for a save in the background, and raise what :meth:`save` would have."""

    @abstractmethod
    def check(self, path: str) -> None:
        """Compare a saved folder with what was written, before anything of it is used.

        Raises:
            CheckpointError: there is none, or it is not whole, or a file of it, which is named, was changed.
        """

    @abstractmethod
    def load(self, path: str, *, with_optimizer: bool = True) -> int:
        """Load what any number of ranks saved, and return its ``global_step``.

        Raises:
            CheckpointError: there is none, it is not whole, or it does not fit.
        """

    @abstractmethod
    def export(self, path: str, dtype: torch.dtype) -> None:
        """Write the model, adapters merged, and its tokenizer, as ``from_pretrained`` loads them."""

    @abstractmethod
    def export_adapter(self, path: str) -> None:
        """Write the adapters alone, as peft loads them."""
