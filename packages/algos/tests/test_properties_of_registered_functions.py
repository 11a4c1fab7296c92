"""Every registered estimator and loss, found through the registry, keeps the properties."""

from __future__ import annotations

import oracles
import pytest

import rl_algos as ra
from rl_algos.testing import (
    ADV_EST_PROPERTIES,
    POLICY_LOSS_PROPERTIES,
    check_adv_estimator,
    check_policy_loss,
)


@pytest.mark.parametrize("rule", ADV_EST_PROPERTIES)
@pytest.mark.parametrize("name", sorted(ra.ADV_ESTIMATOR_REGISTRY))
def test_estimator(name: str, rule: str) -> None:
    check_adv_estimator(name, properties=(rule,), oracle=oracles.ADV_EST_ORACLES.get(name))


@pytest.mark.parametrize("rule", POLICY_LOSS_PROPERTIES)
@pytest.mark.parametrize("name", sorted(ra.POLICY_LOSS_REGISTRY))
def test_policy_loss(name: str, rule: str) -> None:
    check_policy_loss(name, properties=(rule,), oracle=oracles.POLICY_LOSS_ORACLES.get(name))


def test_every_builtin_name_is_registered() -> None:
    assert set(ra.ADV_ESTIMATOR_REGISTRY) >= {member.value for member in ra.AdvantageEstimator}
