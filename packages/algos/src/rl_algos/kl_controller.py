"""Controllers of the KL coefficient (Ziegler et al. 2019, https://arxiv.org/abs/1909.08593)."""

from __future__ import annotations

from collections.abc import Mapping

from rl_algos.errors import OptionError


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
