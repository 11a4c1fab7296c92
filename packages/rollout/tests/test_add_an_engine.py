from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout_models import engine_config, make_prompts
from toy_engine import BLOCKS, ToyRollout

from rl_protocol import DataProto
from rl_rollout import EngineStateError, SamplingConfig, build_rollout, registered_rollouts


def test_the_pages_engine_is_built_by_name_and_answers() -> None:
    namespace: dict[str, Any] = {}
    exec(BLOCKS[1], namespace)
    rollout = namespace["rollout"]
    assert "toy" in registered_rollouts()
    out = rollout.generate_sequences(make_prompts([4, 2]))
    assert out.batch["responses"][:, :4].tolist() == [[7, 8, 9, 0]] * 2
    assert out.batch["response_mask"].sum(-1).tolist() == [3, 3]
    assert out.non_tensor_batch["finish_reason"].tolist() == ["stop", "stop"]


def test_the_base_class_waits_for_weights_and_sleeps_for_every_engine() -> None:
    rollout: ToyRollout = build_rollout(engine_config(name="toy", load_format="dummy"), "no/checkpoint")
    with pytest.raises(EngineStateError, match="update_weights"):
        rollout.generate_sequences(make_prompts([4]))
    rollout.update_weights(iter([("bias", torch.tensor(-0.25))]))
    assert rollout.generate_sequences(make_prompts([4])).batch["rollout_log_probs"][0, 0] == -0.25
    rollout.sleep()
    with pytest.raises(EngineStateError, match="asleep"):
        rollout.generate_sequences(make_prompts([4]))
    rollout.wake()
    assert len(rollout.generate_sequences(make_prompts([4]))) == 1


def test_limits_are_resolved_before_the_engine_sees_a_row() -> None:
    rollout: ToyRollout = build_rollout(
        engine_config(name="toy", prompt_length=4, response_length=4, max_model_len=6), "no/checkpoint"
    )
    out = rollout.generate_sequences(make_prompts([1, 4, 0], width=4))
    assert out.batch["response_mask"].sum(-1).tolist() == [3, 2, 0]
    assert out.non_tensor_batch["finish_reason"].tolist() == ["stop", "length", "empty"]
    assert len(rollout.seen) == 2


def test_every_shard_declares_the_same_log_prob_space() -> None:
    rollout: ToyRollout = build_rollout(engine_config(name="toy", temperature=0.7), "no/checkpoint")
    own = [SamplingConfig(), SamplingConfig(temperature=0.5), SamplingConfig()]
    for batch in (make_prompts([4, 2, 3]), make_prompts([4, 2, 3], sampling=own)):
        shards = [rollout.generate_sequences(shard) for shard in batch.chunk(4)]  # the last has no rows
        assert len(DataProto.concat(shards)) == 3
    assert shards[0].meta_info["logprob_space"]["temperature"] == -1
    assert rollout.generate_sequences(make_prompts([])).meta_info["logprob_space"]["temperature"] == 0.7
