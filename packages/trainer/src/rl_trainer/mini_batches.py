"""A step's batch cut into the mini-batches of its optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def mini_batch_rows(uids: Sequence[str], prompts: int, epochs: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
    """Rows of each mini-batch, `epochs` times through the batch.

    A prompt's rows stay together, as they share its forward pass. With one mini-batch per epoch the rows
    keep their order; otherwise prompts are shuffled in each epoch by `seed`.

    Args:
        uids: prompt of each row.
        prompts: prompts in one mini-batch.
        epochs: passes over the batch.
        seed: entropy of the shuffle, e.g. (run seed, step).

    Yields:
        Row numbers, int64.
    """
    rows: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        rows.setdefault(uid, []).append(row)
    names = list(rows)
    for epoch in range(epochs):
        order = np.arange(len(names))
        if len(names) > prompts:
            order = np.random.default_rng([*seed, epoch]).permutation(len(names))
        for start in range(0, len(names), prompts):
            chosen = [rows[names[i]] for i in order[start : start + prompts]]
            yield np.concatenate([np.asarray(part, dtype=np.int64) for part in chosen])
