"""Registries of advantage estimators and policy losses: built-in and the user's own, found by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, TypeVar

from torch import Tensor

from rl_algos.errors import DuplicateNameError, OptionError
from rl_algos.metrics import Metric
from rl_algos.validation import unknown_name

AdvEstFn = Callable[..., tuple[Tensor, Tensor]]
PolicyLossFn = Callable[..., tuple[Tensor, dict[str, Metric]]]

_Fn = TypeVar("_Fn", bound=Callable[..., Any])


class AdvantageEstimator(StrEnum):
    """Names of the built-in advantage estimators."""

    GAE = "gae"
    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    GRPO_PASSK = "grpo_passk"
    GDPO = "gdpo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    RLOO = "rloo"
    REMAX = "remax"
    OPO = "opo"
    GPG = "gpg"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"
    MAXRL = "maxrl"
    GIGPO = "gigpo"


@dataclass(frozen=True)
class AdvEstSpec:
    """A registered advantage estimator and what is promised about it.

    `inputs`: names of the per-row or per-token inputs beside `token_level_rewards` and `response_mask`.
    `options`: the other keywords, with their defaults.
    `non_negative_scores`: it takes no negative score.
    """

    name: str
    fn: AdvEstFn
    inputs: tuple[str, ...]
    options: dict[str, Any]
    non_negative_scores: bool = False


@dataclass(frozen=True)
class PolicyLossSpec:
    """A registered policy loss and what is promised about it.

    `inputs`: names of the per-row or per-token inputs beside the four that every loss has.
    `options`: the loss's own keywords, with their defaults (weighting keywords are not among them).
    `surrogate`: same call, plus `anchor` (the log-probs, `[B, T]`, at which stop-gradients stand): the
    function whose gradient in `log_prob` the loss is meant to have. None: the loss's own value.
    `sequence_level`: a token's loss depends on the whole row.
    """

    name: str
    fn: PolicyLossFn
    inputs: tuple[str, ...]
    options: dict[str, Any]
    surrogate: PolicyLossFn | None
    sequence_level: bool


ADV_ESTIMATOR_REGISTRY: dict[str, AdvEstSpec] = {}
POLICY_LOSS_REGISTRY: dict[str, PolicyLossSpec] = {}

TOKEN_INPUTS = ("token_level_rewards", "response_mask")
LOSS_INPUTS = ("old_log_prob", "log_prob", "advantages", "response_mask")
WEIGHTING = ("row_weights", "loss_agg_mode", "norm_constant", "prompt_index", "rollout_is_weights", "anchor")


def register_adv_est(
    name: str | AdvantageEstimator, *, inputs: tuple[str, ...] = (), non_negative_scores: bool = False
) -> Callable[[_Fn], _Fn]:
    """Register an advantage estimator under `name`; the decorated function is returned unchanged.

    It is called with keywords only, `fn(token_level_rewards=[B, T], response_mask=[B, T], **those it names)`,
    and returns `(advantages, returns)`, both `[B, T]` and 0 outside the mask. Parameters without a default
    are inputs (`index`, `values`, ...); `inputs` names further ones that have a default. Everything else is
    an option.
    """
    key = _key(name)

    def decorate(fn: _Fn) -> _Fn:
        needed, options = _split_signature(fn, TOKEN_INPUTS, inputs)
        _add(ADV_ESTIMATOR_REGISTRY, key, AdvEstSpec(key, fn, needed, options, non_negative_scores))
        return fn

    return decorate


def register_policy_loss(
    name: str,
    *,
    inputs: tuple[str, ...] = (),
    surrogate: PolicyLossFn | None = None,
    anchored: bool = False,
    sequence_level: bool = False,
) -> Callable[[_Fn], _Fn]:
    """Register a policy loss under `name`; the decorated function is returned unchanged.

    It is called as `fn(old_log_prob=, log_prob=, advantages=, response_mask=, row_weights= or loss_agg_mode=,
    ...)` and returns `(loss, metrics)`. A loss with stop-gradients declares the function whose gradient it
    means: `surrogate`, or `anchored=True` where the loss itself takes `anchor` and is that function.
    """
    key = _key(name)

    def decorate(fn: _Fn) -> _Fn:
        needed, options = _split_signature(fn, LOSS_INPUTS + WEIGHTING, inputs)
        meant = fn if anchored else surrogate
        _add(POLICY_LOSS_REGISTRY, key, PolicyLossSpec(key, fn, needed, options, meant, sequence_level))
        return fn

    return decorate


def get_adv_estimator_spec(name: str | AdvantageEstimator) -> AdvEstSpec:
    """Return the registration of an estimator; an unknown name raises `UnknownNameError` listing what is."""
    return _find(ADV_ESTIMATOR_REGISTRY, "advantage estimator", name)


def get_policy_loss_spec(name: str) -> PolicyLossSpec:
    """Return the registration of a policy loss; an unknown name raises `UnknownNameError` listing what is."""
    return _find(POLICY_LOSS_REGISTRY, "policy loss", name)


def get_adv_estimator_fn(name: str | AdvantageEstimator) -> AdvEstFn:
    """Return the estimator registered under `name`."""
    return get_adv_estimator_spec(name).fn


def get_policy_loss_fn(name: str) -> PolicyLossFn:
    """Return the policy loss registered under `name`."""
    return get_policy_loss_spec(name).fn


def _key(name: object) -> str:
    if isinstance(name, Enum):
        name = name.value
    if not isinstance(name, str) or not name:
        raise OptionError(f"a registered name is a non-empty string, got {name!r}")
    return name


def _split_signature(
    fn: Callable[..., Any], known: tuple[str, ...], inputs: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, Any]]:
    needed: list[str] = []
    options: dict[str, Any] = {}
    for parameter in inspect.signature(fn).parameters.values():
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if variadic or parameter.name in known:
            continue
        if parameter.default is parameter.empty or parameter.name in inputs:
            needed.append(parameter.name)
        else:
            options[parameter.name] = parameter.default
    return tuple(needed), options


_Spec = TypeVar("_Spec", AdvEstSpec, PolicyLossSpec)


def _find(registry: dict[str, _Spec], kind: str, name: str) -> _Spec:
    key = _key(name)
    if key not in registry:
        raise unknown_name(kind, key, registry)
    return registry[key]


def _add(registry: dict[str, _Spec], name: str, spec: _Spec) -> None:
    known = registry.get(name)
    if known is not None and known.fn is not spec.fn:
        raise DuplicateNameError(
            f"{name!r} is registered already, for {known.fn.__module__}.{known.fn.__qualname__}: "
            "choose another name"
        )
    registry[name] = spec
