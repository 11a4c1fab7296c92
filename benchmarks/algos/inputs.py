"""Inputs of the benchmarks, and verl's side of each comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SHAPES = ((1024, 4096), (8192, 1024))


@dataclass(frozen=True)
class Inputs:
    """One batch: `mask` float `[B, T]` (verl takes no bool everywhere), the rest float32 `[B, T]`."""

    mask: Tensor
    rewards: Tensor
    values: Tensor
    old_log_prob: Tensor
    log_prob: Tensor
    advantages: Tensor

    def index(self, group: int) -> np.ndarray:
        """Ids of groups of this size as objects, as trainers have them."""
        return np.array([f"prompt-{row // group}" for row in range(self.mask.shape[0])], dtype=object)


def make_inputs(rows: int, width: int, seed: int = 0) -> Inputs:
    """Seeded inputs with ragged masks with holes and one reward on each row's last selected token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(width // 4, width + 1, (rows, 1), generator=generator)
    mask = torch.arange(width) < lengths
    starts = torch.rand((rows, width), generator=generator) < 0.02
    holes = torch.nn.functional.max_pool1d(starts.float()[:, None], 8, stride=1, padding=4)[:, 0, :width] > 0
    keep = torch.rand((rows, width), generator=generator) < 0.7
    mask = mask & ~(holes & keep)
    mask[:, 0] = True
    last = (mask.flip(1).cumsum(1).flip(1) == 1) & mask
    score = torch.randint(0, 2, (rows, 1), generator=generator).float()

    def normal(scale: float) -> Tensor:
        return scale * torch.randn((rows, width), generator=generator)

    old = -normal(1.0).abs()
    return Inputs(mask.float(), last * score, normal(1.0), old, old + normal(0.2), normal(1.0))


def verl_actor_config() -> Any:
    """verl's actor configuration with its own defaults."""
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    return FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        ppo_mini_batch_size=1,
        policy_loss=PolicyLossConfig(dro_beta=0.5),
    )
