"""What the values of this package's keys may be; each error names key, value and rule."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rl_workers.errors import WorkerConfigError

KL_LOSSES = ("k1", "k2", "k3", "kl", "mse", "low_var_kl")
KL_VALUES = (*KL_LOSSES, "abs")
NORMED = "seq-mean-token-sum-norm"


def check(ok: bool, key: str, value: object, rule: str) -> None:
    """Raise :class:`WorkerConfigError` unless the rule holds."""
    if not ok:
        raise WorkerConfigError(f"{key}={value!r}: {rule}")


def at_least(lowest: float, config: object, prefix: str, *names: str) -> None:
    """Finite numbers not below another; NaN is none."""
    for name in names:
        value = getattr(config, name)
        check(lowest <= value < math.inf, f"{prefix}.{name}", value, f"must be {lowest:g} or more")


def positive(config: object, prefix: str, *names: str) -> None:
    """Finite numbers above 0."""
    for name in names:
        value = getattr(config, name)
        check(0 < value < math.inf, f"{prefix}.{name}", value, "must be positive")


def check_kl_loss(kind: str, key: str) -> None:
    """An estimator with the right gradient in a loss: one of ``KL_LOSSES``, or any value with a ``+``."""
    kinds = KL_VALUES if kind.endswith("+") else KL_LOSSES
    rule = f"choose {', '.join(KL_LOSSES)}, or one of {', '.join(KL_VALUES)} with a + behind it"
    check(kind.removesuffix("+") in kinds, key, kind, rule)


def check_aggregation(mode: str, prefix: str, without: str = "") -> None:
    """A way to make one number of token losses."""
    from rl_algos.aggregation import AGGREGATION_MODES

    modes = [known for known in AGGREGATION_MODES if known != without]
    check(mode in modes, f"{prefix}.loss_agg_mode", mode, f"choose {', '.join(modes)}")


def check_loss(name: str, options: Mapping[str, float], prefix: str) -> None:
    """A policy loss that exists, with options that it has."""
    from rl_algos import get_policy_loss_spec
    from rl_algos.errors import RLAlgosError

    try:
        known = sorted(get_policy_loss_spec(name).options)
    except RLAlgosError as error:
        raise WorkerConfigError(f"{prefix}.loss_mode={name!r}: {error}") from error
    for option, value in options.items():
        rule = f"loss {name!r} has no such option; it has {', '.join(known) or 'none'}"
        check(option in known, f"{prefix}.options.{option}", value, rule)
        check(math.isfinite(value), f"{prefix}.options.{option}", value, "must be a finite number")


def check_strategy(value: str, key: str) -> None:
    """An engine that is built."""
    check(value in ("fsdp", "fsdp2"), key, value, "no such engine is built; built: fsdp")


def check_budget(value: int, key: str) -> None:
    """A possible number of tokens."""
    check(value > 0, key, value, "a micro-batch holds at least one token")


def check_device(value: str, key: str) -> None:
    """A kind of device."""
    check(value in ("auto", "cpu", "cuda"), key, value, "choose auto, cpu or cuda")
