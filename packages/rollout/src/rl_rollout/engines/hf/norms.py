"""RMS norms of a few rows: one call of torch in place of the six that a Hugging Face model makes of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EPSILON_NAMES = ("variance_epsilon", "eps")


def use_short_norms(model: nn.Module) -> int:
    """Give modules that compute `w x / sqrt(mean(x^2) + eps)` torch's own form of it; how many they are.

    By name alone one can't know (some models scale by `1 + w`): each is tried against its own forward on
    random weights and keeps that where the two differ.
    """
    return sum(
        _use_short_norm(module) for module in model.modules() if type(module).__name__.endswith("RMSNorm")
    )


def _use_short_norm(module: Any) -> bool:
    epsilon = next((getattr(module, name) for name in _EPSILON_NAMES if hasattr(module, name)), None)
    weight = module._parameters.get("weight")
    alone = len(module._parameters) == 1 and weight is not None and weight.ndim == 1
    if not isinstance(epsilon, float) or not alone or weight.dtype != torch.float32:
        return False
    own = module.forward

    def forward(hidden_states: Tensor) -> Tensor:
        return F.rms_norm(hidden_states, (hidden_states.shape[-1],), module.weight, epsilon)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, len(weight), generator=generator)
    x = x * torch.tensor([[1.0], [epsilon**0.5], [1e3]])  # where epsilon counts and where it doesn't
    kept, weight.data = weight.data, torch.randn(len(weight), generator=generator)
    try:
        with torch.no_grad():
            agree = torch.allclose(own(x), forward(x), rtol=1e-5, atol=1e-6)
    except (TypeError, RuntimeError):  # it takes something else than rows, or gives something else
        agree = False
    finally:
        weight.data = kept
    if agree:
        module.forward = forward
    return agree
