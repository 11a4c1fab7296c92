"""What goes into an engine and what comes out, one row at a time: token ids, never text."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_rollout.config import SamplingConfig

_SEED_MASK = (1 << 62) - 1  # engines read -1 as "no seed": keep seeds non-negative


@dataclass(frozen=True)
class GenerationRequest:
    """One row to complete. `max_tokens` is resolved: at least 1, and it fits the engine.

    With `interruptible`, `BaseRollout.abort` gives what the row has by then.
    """

    prompt_ids: list[int]
    sampling: SamplingConfig
    seed: int
    max_tokens: int
    interruptible: bool = False


@dataclass
class Completion:
    """One row's answer. `log_probs[i]` belongs to `token_ids[i]`; an EOS is part of both.

    `mask[i]` is 1 where the policy chose the token and 0 where an environment put it; empty means all 1.
    `finish_reason` is "stop" (EOS or a stop string), "length" (cut at the limit, or no room left),
    "empty" (no prompt tokens), "abort", or "error" (an agent row that failed). `versions[i]` is that of the
    weights that drew the token, -1 for an environment's; empty where nobody counts them.
    """

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: str = "length"
    mask: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


def derive_seed(base: int, *parts: int) -> int:
    """A seed in [0, 2**62) from a base and coordinates such as (call, data-parallel rank, row).

    Mixes with the finaliser of SplitMix64 (Steele, Lea and Flood 2014), so that neighbours are unrelated
    and the same coordinates give the same seed in every process.
    """
    state = base & 0xFFFFFFFFFFFFFFFF
    for part in parts:
        state = (state + (part + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & _SEED_MASK


def usable_seed(seed: int) -> int:
    """`seed` mapped into what every engine accepts as a seed."""
    return seed & _SEED_MASK
