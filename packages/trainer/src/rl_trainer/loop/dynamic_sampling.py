"""DAPO's dynamic sampling: only prompts whose responses differ in their raw score teach anything."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rl_algos import informative_groups

from .metrics import Metrics
from .step_batch import StepBatch


def keep_informative(batch: StepBatch) -> StepBatch:
    """The rows of prompts whose valued responses hold two different raw scores."""
    scores = batch["raw_scores"]
    valued = ~scores.isnan()
    keep = informative_groups(torch.nan_to_num(scores), batch.uids, valued)
    chosen = {uid for uid, kept in zip(batch.uids, keep.tolist(), strict=True) if kept}
    return batch.rows([row for row, uid in enumerate(batch.uids) if uid in chosen])


def fill_up(
    batch: StepBatch, prompts: int, batches: int, more: Callable[[], StepBatch]
) -> tuple[StepBatch, Metrics]:
    """Keep informative prompts and sample until there are enough.

    Args:
        batch: the first generated and scored batch.
        prompts: prompts wanted.
        batches: most batches, the first one included.
        more: generates and scores another batch.

    Returns:
        The batch (the first one whole, where no prompt of any was informative), and as metrics the batches
        generated and the prompts left out.
    """
    first, kept = batch, keep_informative(batch)
    generated, seen = 1, len(set(batch.uids))
    while len(set(kept.uids)) < prompts and generated < batches:
        extra = more()
        seen += len(set(extra.uids))
        generated += 1
        kept = StepBatch.concat([kept, keep_informative(extra)])
    names = list(dict.fromkeys(kept.uids))
    counts = {
        "train/num_gen_batches": float(generated),
        "train/filtered_prompts/sum": float(seen - len(names)),
    }
    if not names:
        return first, counts
    chosen = set(names[:prompts])
    return kept.rows([i for i, uid in enumerate(kept.uids) if uid in chosen]), counts
