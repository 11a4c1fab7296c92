"""Models with a head that answers per prediction: log-probabilities, a value, a score.

Each wraps a Hugging Face model as ``lm``, takes a :class:`PackedBatch` and answers with a tuple of float32
tensors ``[N]``. FSDP shards the wrapper as the root, because its head's weight may be tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl_protocol import balanced_sizes
from rl_workers.compute.attention import PLAN_KWARG
from rl_workers.compute.logprob import LogitForm, linear_log_probs, linear_sum_pi_squared
from rl_workers.compute.packing import PackedBatch
from rl_workers.compute.ulysses import HeadExchange, gather_parts
from rl_workers.errors import ModelSupportError

SCALAR_HEADS = ("score", "classifier")
"""Names that transformers gives the head of a classifier."""


class HeadedModel(nn.Module):
    """The body of a Hugging Face model; subclasses add what is computed from its hidden states."""

    def __init__(self, lm: PreTrainedModel, sp_group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.lm = lm
        self.sp_group = sp_group

    def hidden_states(self, batch: PackedBatch) -> Tensor:
        """Hidden states of the packed tokens, ``[T, D]``."""
        kwargs: dict[str, Any] = {"attention_mask": batch.attention_mask}
        if batch.plan is not None:
            kwargs[PLAN_KWARG] = batch.plan
        out = self.lm.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False, **kwargs
        )
        return cast(Tensor, out.last_hidden_state.flatten(0, 1))

    def local_part(self, batch: PackedBatch) -> tuple[PackedBatch, list[int] | None]:
        """This rank's part of the sequence, and how many predictions each rank of the group has."""
        if self.sp_group is None:
            return batch, None
        ranks, me = dist.get_world_size(self.sp_group), dist.get_rank(self.sp_group)
        sizes = balanced_sizes(batch.tokens, ranks)
        bounds = torch.tensor(
            [sum(sizes[: index + 1]) for index in range(ranks)], device=batch.predict.device
        )
        counts = torch.bincount(
            torch.searchsorted(bounds, batch.predict, right=True), minlength=ranks
        ).tolist()
        start, first = sum(sizes[:me]), sum(counts[:me])
        tokens, mine = slice(start, start + sizes[me]), slice(first, first + counts[me])
        assert batch.plan is not None
        part = replace(
            batch,
            input_ids=batch.input_ids[:, tokens],
            position_ids=batch.position_ids[:, tokens],
            plan=batch.plan.exchanged(HeadExchange(self.sp_group, sizes)),
            predict=batch.predict[mine] - start,
            labels=batch.labels[mine],
        )
        return part, counts

    def gathered(self, values: Tensor, counts: list[int] | None) -> Tensor:
        """Put the predictions of all ranks of the group together."""
        if counts is None or self.sp_group is None:
            return values
        return gather_parts(values, counts, self.sp_group)

    def scalars(self, batch: PackedBatch) -> Tensor:
        """What a head with one label says at each prediction, float32 ``[N]``."""
        part, counts = self.local_part(batch)
        found = scalar_head(self.lm)(self.hidden_states(part)[part.predict])
        return self.gathered(found.float()[:, 0].clone(), counts)  # FSDP's hook wants no view


class PolicyModel(HeadedModel):
    """A causal language model that answers with log-probabilities of the labels."""

    def __init__(self, lm: PreTrainedModel, sp_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(lm, sp_group)
        self._logit_form = logit_form(lm.config)

    def forward(
        self,
        batch: PackedBatch,
        temperature: float = 1.0,
        entropy: bool = True,
        entropy_grad: bool = False,
        adapter: bool = True,
        sum_pi_squared: bool = False,
    ) -> tuple[Tensor, ...]:
        """Log-probability and entropy of each prediction, and on request the sum of squared probabilities.

        Each is float32 ``[N]``. ``adapter=False`` switches adapters off: the reference policy of an actor
        trained by LoRA.
        """
        part, counts = self.local_part(batch)
        with _adapters(self.lm, adapter):
            hidden = self.hidden_states(part)
        head = cast(Any, self.lm).get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelSupportError(f"the head of {type(self.lm).__name__} is not a linear layer")
        states, form = hidden[part.predict], replace(self._logit_form, temperature=temperature)
        answers: tuple[Tensor, ...] = linear_log_probs(
            states,
            head.weight,
            part.labels,
            bias=head.bias,
            form=form,
            entropy=entropy,
            entropy_grad=entropy_grad,
        )
        if sum_pi_squared:
            answers += (linear_sum_pi_squared(states, head.weight, bias=head.bias, form=form),)
        return tuple(self.gathered(answer, counts) for answer in answers)


class ValueModel(HeadedModel):
    """A token classifier with one label, which answers with the value before each response token."""

    def forward(self, batch: PackedBatch) -> tuple[Tensor]:
        """Values, float32 ``[N]``."""
        return (self.scalars(batch),)


class ScoreModel(HeadedModel):
    """A sequence classifier with one label, which answers with the score at each row's last token."""

    def forward(self, batch: PackedBatch) -> tuple[Tensor]:
        """Scores, float32 ``[N]``, one per row."""
        return (self.scalars(batch),)


def scalar_head(lm: nn.Module) -> nn.Linear:
    """The one-label head of a token or sequence classifier.

    Raises:
        ModelSupportError: the model has no linear head under a name that transformers uses.
    """
    for name in SCALAR_HEADS:
        head = getattr(lm, name, None)
        if isinstance(head, nn.Linear):
            return head
    raise ModelSupportError(f"{type(lm).__name__} has no linear head named score or classifier")


def logit_form(config: Any) -> LogitForm:
    """Scale and soft cap that a model applies to its logits, as its configuration states them."""
    text = config.get_text_config()
    scale = float(getattr(text, "logit_scale", None) or 1.0)
    divisor = float(getattr(text, "logits_scaling", None) or 1.0)
    return LogitForm(
        scale=scale / divisor, softcap=float(getattr(text, "final_logit_softcapping", None) or 0.0)
    )


@contextmanager
def _adapters(lm: nn.Module, enabled: bool) -> Iterator[None]:
    """Adapters of peft, off inside the block if not ``enabled``.

    The flag is set directly: peft's own switch also changes ``requires_grad``, on parameters that are
    gathered or sharded at that moment, and so would leave a sharded model in a mixed state.
    """
    layers = [] if enabled else [cast(Any, m) for m in lm.modules() if hasattr(m, "_disable_adapters")]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
