"""KL between policy and reference from samples: estimators k1, k2, k3, their uses, and controllers.

Estimators: Schulman 2020, http://joschu.net/blog/kl-approx.html. Controllers of the coefficient: Ziegler et
al. 2019, https://arxiv.org/abs/1909.08593.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_algos.errors import OptionError, ShapeError
from rl_algos.token_loss import LOG_RATIO_LIMIT, clamp_log_ratio
from rl_algos.validation import check_floating, compute_dtype, unknown_name

_CANONICAL = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
KL_ESTIMATORS: tuple[str, ...] = ("k1", "k2", "k3", "abs", "full", *_CANONICAL)


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: str = "k1") -> Tensor:
    r"""Per-token estimate of KL(policy || reference), with d = logprob - ref_logprob:

    - `k1` (also `kl`): d; unbiased value, useless as a loss (its gradient has mean 0)
    - `k2` (`mse`): d^2 / 2; its gradient d is that of the KL on policy
    - `k3` (`low_var_kl`): exp(-d) - 1 + d; unbiased, non-negative value
    - `abs`: |d|
    - `full`: sum over the vocabulary of p (log p - log q), exact; both inputs are then normalised
      log-distributions `[..., V]` and the result is `[...]`
    - any of the first four with `+`: that value with the gradient of k2 (straight-through)

    Nothing is masked: aggregate under the mask. Values are never clamped; the exponent in k3 is, at 20, with
    the gradient 1 - exp(-d) kept.

    Args:
        logprob, ref_logprob: floating, one shape; the gradient goes to both.
        kl_penalty: name; an unknown one raises `UnknownNameError`.

    Returns:
        float32 or float64, `[...]`.
    """
    _check_pair(logprob, ref_logprob)
    dtype = compute_dtype(logprob, ref_logprob)
    log_p, log_q = logprob.to(dtype), ref_logprob.to(dtype)
    name = kl_penalty.removesuffix("+")
    estimator = _CANONICAL.get(name, name)
    straight_through = kl_penalty.endswith("+")
    if estimator not in KL_ESTIMATORS or (straight_through and estimator == "full"):
        raise unknown_name(
            "KL estimator", kl_penalty, (*KL_ESTIMATORS, *(f"{k}+" for k in KL_ESTIMATORS[:4]))
        )
    if estimator == "full":
        return full_kl(log_p, log_q)
    difference = log_p - log_q
    if straight_through:
        return _replace_gradient(_estimate(difference, estimator), 0.5 * difference.square())
    return _estimate(difference, estimator)


def kl_loss(
    logprob: Tensor, ref_logprob: Tensor, old_logprob: Tensor | None = None, kl_penalty: str = "k3"
) -> Tensor:
    r"""KL term for use inside a loss: its expected gradient is that of KL(policy || reference).

        exp(logprob - old_logprob) * k(d)

    The samples come from the old policy; the ratio corrects for that, and its own gradient completes that of
    k1 and k3, which alone have the wrong one in expectation (k1's is 0). k2's gradient is right by itself:
    there the ratio is a weight only. Without `old_logprob` the samples are the current policy's (ratio 1).

    Args:
        logprob, ref_logprob, old_logprob: floating, one shape; log-ratio clamped to plus or minus 20.
        kl_penalty: k1, k2 or k3.

    Returns:
        float32 or float64 in the inputs' shape; aggregate under the mask. The value estimates the KL for k1,
        k3.
    """
    name = _CANONICAL.get(kl_penalty, kl_penalty)
    if name not in ("k1", "k2", "k3"):
        raise unknown_name("KL estimator for a loss", kl_penalty, ("k1", "k2", "k3"))
    _check_pair(logprob, ref_logprob)
    old = logprob.detach() if old_logprob is None else old_logprob
    _check_pair(logprob, old)
    dtype = compute_dtype(logprob, ref_logprob)
    log_p = logprob.to(dtype)
    ratio = clamp_log_ratio(log_p - old.to(dtype)).exp()
    return (ratio.detach() if name == "k2" else ratio) * _estimate(log_p - ref_logprob.to(dtype), name)


def full_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Exact KL(p || q) `[...]` of normalised log-distributions `[..., V]`; where p is 0 the term is 0."""
    _check_pair(log_p, log_q)
    supported = log_p > float("-inf")
    safe_p = torch.where(supported, log_p, 0)
    term = torch.where(supported, log_p.exp() * (safe_p - torch.where(supported, log_q, 0)), 0)
    return term.sum(dim=-1)


class FixedKLController:
    """A constant coefficient, `value`."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Do nothing: the coefficient is fixed."""

    def state_dict(self) -> dict[str, float]:
        """Return the state to checkpoint."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore what `state_dict` returned."""
        if "value" not in state:
            raise OptionError(f"a KL controller's state holds 'value', got {sorted(state)}")
        self.value = float(state["value"])


class AdaptiveKLController(FixedKLController):
    """A coefficient that follows the KL towards `target_kl`.

    `update`: value *= 1 + clip(current / target - 1, -0.2, 0.2) * n_steps / horizon.
    """

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: int) -> None:
        if target_kl <= 0 or horizon <= 0:
            raise OptionError(f"target_kl={target_kl} and horizon={horizon} must be positive")
        super().__init__(init_kl_coef)
        self.target = target_kl
        self.horizon = horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        """Move the coefficient after `n_steps` samples whose mean KL was `current_kl`; NaN changes
        nothing."""
        if current_kl != current_kl:
            return
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        self.value *= 1.0 + error * n_steps / self.horizon


def _estimate(difference: Tensor, estimator: str) -> Tensor:
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference.square()
    if estimator == "abs":
        return difference.abs()
    # The clamp bounds the value of exp only: with a clamp's zero gradient k3 would push the wrong way.
    excess = (-difference - LOG_RATIO_LIMIT).clamp(min=0).detach()
    return torch.expm1(-difference - excess) + difference


def _replace_gradient(value: Tensor, gradient_of: Tensor) -> Tensor:
    return gradient_of + (value - gradient_of).detach()


def _check_pair(logprob: Tensor, other: Tensor) -> None:
    check_floating("logprob", logprob)
    check_floating("ref_logprob", other)
    if logprob.shape != other.shape:
        raise ShapeError(
            f"logprob has shape {tuple(logprob.shape)}, the other {tuple(other.shape)}: expected one"
        )
