"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from rl_workers.config import OptimConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer over the parameters that are trained."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(trained, lr=config.lr, weight_decay=config.weight_decay)
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(trained, lr=config.lr, betas=betas, weight_decay=config.weight_decay, fused=True)


def take_step(optimizer: torch.optim.Optimizer, divisor: float) -> None:
    """A step on the gradients divided by ``divisor``."""
    if isinstance(optimizer, torch.optim.AdamW):
        # the fused kernel divides on its way, which saves a pass over all gradients
        cast(Any, optimizer).grad_scale = torch.tensor(divisor)
    elif divisor != 1.0:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(grads, divisor)
    optimizer.step()


def schedule_factor(step: int, config: OptimConfig) -> float:
    """Share of the peak rate at a step (0 is the first)."""
    if step < config.lr_warmup_steps:
        return (step + 1) / (config.lr_warmup_steps + 1)
    if config.lr_scheduler_type == "constant":
        return 1.0
    span = max(1, config.total_training_steps - config.lr_warmup_steps)
    progress = min(1.0, (step - config.lr_warmup_steps) / span)
    if config.lr_scheduler_type == "linear":
        left = 1.0 - progress
    else:
        left = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * left


def build_scheduler(optimizer: torch.optim.Optimizer, config: OptimConfig) -> LambdaLR:
    """Warm-up, then constant, linear or cosine."""
    return LambdaLR(optimizer, lambda step: schedule_factor(step, config))
