"""Sampling seeds: derived from the run's seed, the step and the row, never drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch


def row_seeds(run_seed: int, step: int | str, uids: Sequence[str]) -> torch.Tensor:
    """One sampling seed per row, `[B]` int32 in [0, 2^31).

    Rows with the same uid are told apart by their repetition, counted in order. The same run seed, step,
    uid and repetition give the same seed on any number of workers and after a resume.
    """
    seen: dict[str, int] = {}
    seeds = []
    for uid in uids:
        repetition = seen[uid] = seen.get(uid, -1) + 1
        text = f"{run_seed}/{step}/{uid}/{repetition}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        seeds.append(int.from_bytes(digest, "big") >> 33)
    return torch.tensor(seeds, dtype=torch.int32)
