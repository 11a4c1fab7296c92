from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout_models import engine_config, largest_difference, make_prompts, make_tiny_model, token_log_probs
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl_protocol import DataProto
from rl_rollout import EngineStateError, HFRollout, RolloutConfigError, RolloutDataError, SamplingConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize("sampling", [SamplingConfig(temperature=0.7), SamplingConfig(do_sample=False)])
def test_log_probs_are_the_models_at_the_sampling_temperature(
    model_path: str, prompts: DataProto, sampling: SamplingConfig
) -> None:
    rollout = HFRollout(engine_config(), model_path, CPU)
    prompts.meta_info["sampling"] = sampling
    out = rollout.generate_sequences(prompts)
    expected = token_log_probs(rollout.model, out, sampling.logprob_temperature)
    mask = out.batch["response_mask"]
    assert mask.sum() > len(prompts)
    assert largest_difference(out.batch["rollout_log_probs"], expected, mask) < 1e-5
    assert out.meta_info["logprob_space"]["temperature"] == sampling.logprob_temperature


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_the_same_alone_and_in_any_batch(models: dict[str, str], dtype: str) -> None:
    rollout = HFRollout(engine_config(dtype=dtype), models["untied"], CPU)
    prompts = make_prompts([3, 11, 40, 41, 5, 33, 9])
    together = rollout.generate_sequences(prompts)
    backwards = rollout.generate_sequences(prompts[list(range(6, -1, -1))])
    for row in range(len(prompts)):
        alone = rollout.generate_sequences(prompts[row : row + 1])
        for key in ("responses", "rollout_log_probs"):
            assert torch.equal(alone.batch[key][0], together.batch[key][row])
            assert torch.equal(alone.batch[key][0], backwards.batch[key][6 - row])


def test_greedy_tokens_are_those_of_transformers_generate(models: dict[str, str]) -> None:
    rollout = HFRollout(engine_config(), models["untied"], CPU)
    prompts = make_prompts([9, 17])
    prompts.meta_info["sampling"] = SamplingConfig(do_sample=False, ignore_eos=True)
    out = rollout.generate_sequences(prompts)
    expected: Any = rollout.model.generate(
        prompts.batch["input_ids"],
        attention_mask=prompts.batch["attention_mask"],
        max_new_tokens=16,
        min_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
    )
    assert torch.equal(out.batch["input_ids"], expected)


def test_rows_end_by_eos_at_the_limit_or_empty(tmp_path: Any) -> None:
    path = make_tiny_model(tmp_path / "m", tied=True, eos=77)  # the tiny model says 77 sooner or later
    rollout = HFRollout(engine_config(max_model_len=50), path, CPU)
    rollout.eos_ids = list(range(0, 256, 4))
    out = rollout.generate_sequences(make_prompts([3, 48, 0, 20]))
    lengths = out.batch["response_mask"].sum(-1).tolist()
    reasons = list(out.non_tensor_batch["finish_reason"])
    assert lengths[1] <= 2  # no more room in the model
    assert (lengths[2], reasons[2]) == (0, "empty")
    for row in range(4):
        ids = out.batch["responses"][row, : lengths[row]].tolist()
        assert all(token % 4 for token in ids[:-1])  # nothing goes on after an EOS
        assert (reasons[row] == "stop") == bool(ids and ids[-1] % 4 == 0)


def test_stop_strings_end_a_response_and_stay_in_it(models: dict[str, str], tokenizer: Any) -> None:
    rollout = HFRollout(engine_config(), models["untied"], CPU, tokenizer)
    prompts = make_prompts([9])
    free = rollout.generate_sequences(prompts)
    third = int(free.batch["responses"][0, 2])
    prompts.meta_info["sampling"] = SamplingConfig(stop=[tokenizer.decode([third])])
    out = rollout.generate_sequences(prompts)
    n = int(out.batch["response_mask"].sum())
    assert n <= 3
    assert int(out.batch["responses"][0, n - 1]) == third
    assert list(out.non_tensor_batch["finish_reason"]) == ["stop"]


def test_no_rows_give_no_rows(models: dict[str, str]) -> None:
    rollout = HFRollout(engine_config(), models["tied"], CPU)
    assert len(rollout.generate_sequences(make_prompts([]))) == 0


def test_an_engine_without_weights_refuses_and_an_update_gives_it_the_models(
    model_path: str, reference: dict[str, PreTrainedModel], prompts: DataProto
) -> None:
    rollout = HFRollout(engine_config(load_format="dummy"), model_path, CPU)
    with pytest.raises(EngineStateError, match="update_weights"):
        rollout.generate_sequences(prompts)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    rollout.update_weights(iter(model.named_parameters()))
    out = rollout.generate_sequences(prompts)
    expected = token_log_probs(model, out)
    assert largest_difference(out.batch["rollout_log_probs"], expected, out.batch["response_mask"]) < 1e-5


def test_an_incomplete_or_misnamed_update_is_an_error(models: dict[str, str]) -> None:
    rollout = HFRollout(engine_config(), models["untied"], CPU)
    with pytest.raises(RolloutDataError, match=r"no weight 'model\.x'"):
        rollout.update_weights(iter([("model.x", torch.zeros(1))]))
    with pytest.raises(RolloutDataError, match="did not arrive"):
        rollout.update_weights(iter([("model.norm.weight", torch.ones(64))]))


def test_missing_seeds_are_derived_and_differ_between_calls_and_shards(models: dict[str, str]) -> None:
    def run(shard: int) -> list[list[int]]:
        rollout = HFRollout(engine_config(), models["untied"], CPU)
        rollout.data_parallel_rank = shard
        prompts = make_prompts([9, 9])
        prompts.batch["input_ids"][1] = prompts.batch["input_ids"][0]
        prompts.pop(batch_keys=["seeds"])
        calls = [rollout.generate_sequences(prompts).batch["responses"] for _ in range(2)]
        return torch.cat(calls).tolist()

    first = run(0)
    assert first == run(0)
    assert len({tuple(row) for row in first + run(1)}) == 8


def test_tensor_parallel_is_refused(models: dict[str, str]) -> None:
    with pytest.raises(RolloutConfigError, match="whole model per rank"):
        HFRollout(engine_config(tensor_model_parallel_size=2), models["tied"], CPU)
