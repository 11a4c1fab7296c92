"""Quicker norms and rotations for a model on a CPU, where its own agree with them; the log says where."""

from __future__ import annotations

import logging

from transformers import PreTrainedModel

from rl_workers.compute.attention import attention_dtype
from rl_workers.compute.rms_norm import use_fast_norms
from rl_workers.compute.rotary import use_fast_rotary

logger = logging.getLogger(__name__)


def use_fast_layers(lm: PreTrainedModel) -> None:
    """Give layers the fast form of what they compute, and log at level INFO how many got it.

    Which layers a model has is told by their classes' names alone, which is more than the fast forms accept:
    a release of transformers that changes a layer costs its speed, but not in silence.
    """
    kinds = [type(module).__name__ for module in lm.modules()]
    norms = sum("RMSNorm" in kind for kind in kinds)
    rotates = any("Rotary" in kind for kind in kinds)
    attentions = max(1, sum(kind.endswith("Attention") for kind in kinds)) if rotates else 0
    _report(lm, "RMS norms", use_fast_norms(lm), norms)
    _report(lm, "rotary embeddings", use_fast_rotary(lm, attention_dtype(lm.config)), attentions)


def _report(lm: PreTrainedModel, what: str, fast: int, found: int) -> None:
    name = type(lm).__name__
    if fast:
        logger.info("%s: %d of %d %s in the fast form", name, fast, max(fast, found), what)
    elif found:
        logger.info("%s: none of %d %s agrees with the fast form, all stay the model's", name, found, what)
