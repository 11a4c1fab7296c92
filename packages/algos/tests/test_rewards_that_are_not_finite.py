"""A reward that is not finite is an error that names its row, or nothing outside the mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import rl_algos as ra
from rl_algos.registry import get_adv_estimator_spec
from rl_algos.testing.batches import INPUT_MAKERS, Batch

MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1], [1, 1, 0, 0]]).bool()
INDEX = torch.tensor([0, 0, 0, 1, 1])
ROW, BESIDE, WITHOUT_TOKENS = (3, 2), (0, 2), (2, 1)
NOT_FINITE = [math.nan, math.inf, -math.inf]


def advantages(name: str, place: tuple[int, int] | None = None, reward: float = 0.0) -> Tensor:
    """Those of one batch, with `reward` at `place`, and in the row's own numbers if it says of the row."""
    spec = get_adv_estimator_spec(name)
    generator = torch.Generator().manual_seed(7)
    batch = Batch(MASK, INDEX)
    for needed in ("token_level_rewards", *spec.inputs):
        made = INPUT_MAKERS[needed](batch, generator)
        batch = batch.with_inputs(**{needed: made.float() if made.is_floating_point() else made})
    inputs = dict(batch.inputs)
    inputs["token_level_rewards"] = inputs["token_level_rewards"].abs()
    if place is not None:
        inputs["token_level_rewards"][place] = reward
        row_wise = () if place == BESIDE else ("reward_components", "step_returns")
        for column in inputs.keys() & row_wise:
            inputs[column][place[0]] = reward
    found, _ = spec.fn(response_mask=MASK, **inputs)
    return found


every_estimator = pytest.mark.parametrize("name", list(ra.AdvantageEstimator))


@every_estimator
@pytest.mark.parametrize("reward", NOT_FINITE)
def test_the_row_is_named(name: str, reward: float) -> None:
    with pytest.raises(ra.NonFiniteError, match="of row 3 is"):
        advantages(name, ROW, reward)


@every_estimator
@pytest.mark.parametrize("reward", NOT_FINITE)
@pytest.mark.parametrize("place", [BESIDE, WITHOUT_TOKENS])
def test_outside_the_mask_it_is_nothing(name: str, reward: float, place: tuple[int, int]) -> None:
    torch.testing.assert_close(advantages(name, place, reward), advantages(name), rtol=0, atol=0)


@every_estimator
def test_large_rewards_give_finite_advantages_or_an_error(name: str) -> None:
    for large in (1e19, 1e30, 3e38):
        try:
            found = advantages(name, ROW, large)
        except ra.NonFiniteError as error:
            assert "of row 3 is" in str(error)
        else:
            assert bool(found.isfinite().all())


@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo", "opo", "maxrl", "gpg", "grpo_passk"])
@pytest.mark.parametrize("reward", NOT_FINITE)
def test_one_bad_reward_does_not_silence_its_group(name: str, reward: float) -> None:
    rewards = torch.tensor([[0.0], [1.0], [reward]])
    compute = get_adv_estimator_spec(name).fn
    with pytest.raises(ra.NonFiniteError, match=f"of row 2 is {reward}"):
        compute(token_level_rewards=rewards, response_mask=torch.ones(3, 1), index=[0, 0, 0])
    masked = torch.tensor([[1.0], [1.0], [0.0]])
    found, _ = compute(token_level_rewards=rewards, response_mask=masked, index=[0, 0, 0])
    assert bool(found.isfinite().all()) and found[1] > 0 and found[2] == 0


def test_rows_behind_the_first_block_are_named_by_their_own_number() -> None:
    rewards = torch.zeros(300, 2048)
    rewards[257, 5] = math.nan
    with pytest.raises(ra.NonFiniteError, match="of row 257 is nan"):
        ra.compute_gae_advantage_return(rewards, torch.zeros(300, 2048), torch.ones(300, 2048))
