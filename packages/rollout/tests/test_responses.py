from __future__ import annotations

import pytest
import torch
from rollout_models import make_prompts

from rl_rollout import (
    Completion,
    RolloutDataError,
    SamplingConfig,
    eos_response_mask,
    to_batch,
    unpad_prompts,
)
from rl_rollout.batch.responses import row_samplings


def test_mask_ends_with_the_first_eos_even_where_pad_is_eos() -> None:
    eos = 2
    responses = torch.tensor([[7, 2, 2, 2], [7, 8, 9, 5], [2, 2, 2, 2], [7, 2, 9, 2]])
    assert eos_response_mask(responses, [eos]).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 1, 1],
        [1, 0, 0, 0],
        [1, 1, 0, 0],
    ]


def test_batch_masks_follow_lengths_not_token_ids() -> None:
    prompts = make_prompts([2, 3, 1], width=3)
    completions = [
        Completion([7, 2], [-1.0, -2.0], "stop"),
        Completion([7, 8, 9, 2], [-1.0] * 4, "length"),
        Completion([], [], "length"),
    ]
    batch = to_batch(prompts, completions, 4, pad_id=2)
    assert batch.batch["response_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert batch.batch["responses"].tolist() == [[7, 2, 2, 2], [7, 8, 9, 2], [2, 2, 2, 2]]
    assert batch.batch["attention_mask"].tolist()[0] == [0, 1, 1, 1, 1, 0, 0]
    assert batch.batch["position_ids"].tolist()[0] == [0, 0, 1, 2, 3, 3, 3]
    assert batch.batch["rollout_log_probs"].tolist()[0] == [-1.0, -2.0, 0.0, 0.0]
    assert list(batch.non_tensor_batch["finish_reason"]) == ["stop", "length", "length"]


def test_observation_tokens_are_attended_but_not_trained() -> None:
    completion = Completion([5, 6, 7], [-1.0, -9.0, -2.0], "stop", [1, 0, 1])
    batch = to_batch(make_prompts([2], width=2), [completion], 4, pad_id=0)
    assert batch.batch["response_mask"].tolist() == [[1, 0, 1, 0]]
    assert batch.batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0]]
    assert batch.batch["rollout_log_probs"].tolist() == [[-1.0, 0.0, -2.0, 0.0]]


def test_no_rows_make_a_batch_of_no_rows() -> None:
    batch = to_batch(make_prompts([], width=5), [], 4, pad_id=0)
    assert len(batch) == 0
    assert batch.batch["input_ids"].shape == (0, 9)


def test_prompts_lose_their_padding_and_nothing_else() -> None:
    prompts = make_prompts([3, 0], width=4)
    prompts.batch["input_ids"][0] = torch.tensor([0, 0, 5, 0])  # a pad id inside the prompt is a token
    prompts.batch["attention_mask"][0] = torch.tensor([0, 1, 1, 1])
    assert unpad_prompts(prompts) == [[0, 5, 0], []]


def test_a_response_that_is_too_long_is_refused() -> None:
    with pytest.raises(RolloutDataError, match=r"5 tokens.*response_length=4"):
        to_batch(make_prompts([1]), [Completion([1] * 5, [0.0] * 5)], 4, pad_id=0)


def test_sampling_comes_from_the_row_then_the_batch_then_the_default() -> None:
    default, batch_wide = SamplingConfig(), SamplingConfig(temperature=0.5)
    prompts = make_prompts([1, 1])
    assert row_samplings(prompts, default) == [default, default]
    prompts.meta_info["sampling"] = batch_wide
    assert row_samplings(prompts, default) == [batch_wide, batch_wide]
    own = [SamplingConfig(top_k=3), SamplingConfig(top_p=0.5)]
    assert row_samplings(make_prompts([1, 1], sampling=own), default) == own


def test_sampling_as_a_dict_is_refused() -> None:
    prompts = make_prompts([1])
    prompts.meta_info["sampling"] = {"temprature": 0.5}
    with pytest.raises(RolloutDataError, match="must be a SamplingConfig, got dict"):
        row_samplings(prompts, SamplingConfig())
