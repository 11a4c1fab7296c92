from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from rollout_models import engine_config, largest_difference, make_prompts, token_log_probs
from transformers import PreTrainedModel

from rl_protocol import DataProto
from rl_rollout import EngineStateError, SamplingConfig, vLLMRollout

CPU = torch.device("cpu")
pytest.importorskip("vllm")


@pytest.mark.parametrize(
    "sampling",
    [SamplingConfig(), SamplingConfig(temperature=0.7), SamplingConfig(do_sample=False)],
    ids=["plain", "temperature", "greedy"],
)
def test_log_probs_are_the_trainers_at_the_sampling_temperature(
    engine: vLLMRollout, engine_model: PreTrainedModel, prompts: DataProto, sampling: SamplingConfig
) -> None:
    prompts.meta_info["sampling"] = sampling
    out = engine.generate_sequences(prompts)
    expected = token_log_probs(engine_model, out, sampling.logprob_temperature)
    assert largest_difference(out.batch["rollout_log_probs"], expected, out.batch["response_mask"]) < 1e-4


def test_log_probs_are_renormalised_over_what_truncation_keeps(
    engine: vLLMRollout, engine_model: PreTrainedModel, prompts: DataProto
) -> None:
    prompts.meta_info["sampling"] = SamplingConfig(temperature=0.7, top_k=1)
    out = engine.generate_sequences(prompts)
    assert out.batch["rollout_log_probs"].abs().max() < 1e-6
    assert out.meta_info["logprob_space"] == {
        "temperature": 0.7, "top_p": 1.0, "top_k": 1, "dtype": "float32",
    }  # fmt: skip


def test_greedy_tokens_are_those_of_transformers(
    engine: vLLMRollout, engine_model: PreTrainedModel, prompts: DataProto
) -> None:
    prompts.meta_info["sampling"] = SamplingConfig(do_sample=False, ignore_eos=True)
    out = engine.generate_sequences(prompts)
    expected: Any = engine_model.generate(
        prompts.batch["input_ids"],
        attention_mask=prompts.batch["attention_mask"],
        max_new_tokens=16,
        min_new_tokens=16,
        do_sample=False,
        eos_token_id=None,
    )
    assert torch.equal(out.batch["input_ids"], expected)


def test_a_seed_and_a_row_give_the_same_tokens_alone_and_in_any_batch(engine: vLLMRollout) -> None:
    prompts = make_prompts([3, 11, 40, 41, 5, 33] * 5)
    together = engine.generate_sequences(prompts)
    torch.manual_seed(1)
    again = engine.generate_sequences(prompts[list(range(29, -1, -1))])
    for row in (0, 3, 17, 29):
        alone = engine.generate_sequences(prompts[row : row + 1])
        for key in ("responses", "rollout_log_probs"):
            assert torch.equal(alone.batch[key][0], together.batch[key][row])
            assert torch.equal(alone.batch[key][0], again.batch[key][29 - row])


def test_every_seed_is_a_seed(engine: vLLMRollout) -> None:
    prompts = make_prompts([9] * 3)
    prompts.batch["seeds"] = torch.tensor([-1, -1, 2**63 - 1])  # vLLM reads -1 as "no seed"
    first = engine.generate_sequences(prompts)
    torch.manual_seed(5)
    assert torch.equal(first.batch["responses"], engine.generate_sequences(prompts).batch["responses"])


def test_rows_without_seeds_do_not_depend_on_the_process(models: dict[str, str], engine: vLLMRollout) -> None:
    prompts = make_prompts([9, 9, 9])
    prompts.pop(batch_keys=["seeds"])
    outs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        engine._calls = 7
        outs.append(engine.generate_sequences(prompts).batch["responses"])
    assert torch.equal(*outs)
    assert not torch.equal(outs[0], engine.generate_sequences(prompts).batch["responses"])


def test_long_prompts_with_seeds_are_never_chunked(models: dict[str, str]) -> None:
    config = engine_config(prompt_length=90, max_num_batched_tokens=64)
    engine = vLLMRollout(config, models["untied"], CPU)
    try:
        out = engine.generate_sequences(make_prompts([90, 80, 85, 3], width=90))
        assert out.batch["response_mask"].sum(-1).min() > 0
    finally:
        engine.close()


def test_rows_end_by_eos_at_the_limit_or_empty(engine: vLLMRollout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "eos_ids", list(range(0, 256, 4)))
    prompts = make_prompts([3, 48, 0, 20])
    prompts.non_tensor_batch["sampling"] = np.array(
        [SamplingConfig(), SamplingConfig(max_tokens=2), SamplingConfig(), SamplingConfig()], dtype=object
    )
    out = engine.generate_sequences(prompts)
    lengths = out.batch["response_mask"].sum(-1).tolist()
    reasons = list(out.non_tensor_batch["finish_reason"])
    assert lengths[1] <= 2
    assert (lengths[2], reasons[2]) == (0, "empty")
    for row in range(4):
        ids = out.batch["responses"][row, : lengths[row]].tolist()
        assert all(token % 4 for token in ids[:-1])
        assert (reasons[row] == "stop") == bool(ids and ids[-1] % 4 == 0)


def test_stop_strings_end_a_response_and_stay_in_it(engine: vLLMRollout, tokenizer: Any) -> None:
    prompts = make_prompts([9])
    third = int(engine.generate_sequences(prompts).batch["responses"][0, 2])
    prompts.meta_info["sampling"] = SamplingConfig(stop=[tokenizer.decode([third])])
    out = engine.generate_sequences(prompts)
    n = int(out.batch["response_mask"].sum())
    assert n <= 3
    assert int(out.batch["responses"][0, n - 1]) == third


def test_a_refused_request_does_not_haunt_the_next_batch(engine: vLLMRollout) -> None:
    prompts = make_prompts([3, 4, 5])
    prompts.batch["input_ids"][1, -1] = 100_000  # not in the vocabulary
    with pytest.raises(Exception, match="out of vocabulary"):
        engine.generate_sequences(prompts)
    assert not engine.llm.llm_engine.has_unfinished_requests()
    assert len(engine.generate_sequences(make_prompts([3]))) == 1


def test_no_rows_give_no_rows(engine: vLLMRollout) -> None:
    assert len(engine.generate_sequences(make_prompts([]))) == 0


def test_a_group_of_samples_computes_its_prompt_once(engine: vLLMRollout) -> None:
    scheduler: Any = engine.llm.llm_engine.engine_core.engine_core.scheduler
    ids = make_prompts([41]).batch["input_ids"][0, -41:].tolist()
    engine.llm.reset_prefix_cache()
    sampling = SamplingConfig(max_tokens=1)
    engine.complete([ids], [sampling], [1])
    manager = scheduler.kv_cache_manager
    block = engine.config.block_size
    from vllm import SamplingParams

    engine.llm.llm_engine.add_request("probe", {"prompt_token_ids": ids}, SamplingParams(max_tokens=1))
    outputs = engine.llm.llm_engine.step()
    assert manager.enable_caching
    assert outputs[0].num_cached_tokens == 41 // block * block == 32


def test_creating_and_closing_an_engine_leaves_the_process_as_it_was(
    engines: dict[str, vLLMRollout], models: dict[str, str]
) -> None:
    threads = torch.set_num_threads
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(2), np.random.rand(2), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    engine = vLLMRollout(engine_config(), models["tied"], CPU)
    engine.close()
    engine.close()
    assert torch.equal(torch.rand(2), expected[0])
    assert np.array_equal(np.random.rand(2), expected[1])
    assert random.random() == expected[2]
    assert torch.set_num_threads is threads
    with pytest.raises(EngineStateError, match="closed"):
        engine.generate_sequences(make_prompts([3]))
    assert len(engines["tied"].generate_sequences(make_prompts([3]))) == 1  # the others live on


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_importing_the_package_imports_no_engine_and_sets_no_variable() -> None:
    code = (
        "import os, tensordict, torch, transformers; before = dict(os.environ)\n"
        "import rl_rollout, sys\n"
        "assert dict(os.environ) == before\n"
        "assert not {'vllm', 'ray'} & set(sys.modules)\n"
    )
    result = run_python(code, PATH="/usr/bin")
    assert result.returncode == 0, result.stderr


def test_a_missing_variable_is_named_before_vllm_is_imported(models: dict[str, str]) -> None:
    code = (
        "import sys, rl_rollout\n"
        "try: rl_rollout.build_rollout(rl_rollout.RolloutConfig(name='vllm'), sys.argv[1], 'cpu')\n"
        "except rl_rollout.EngineEnvironmentError as error: print(error)\n"
        "assert 'vllm' not in sys.modules\n"
    )
    result = run_python(code.replace("sys.argv[1]", repr(models["tied"])), PATH="/usr/bin")
    assert result.returncode == 0, result.stderr
    assert "TORCHDYNAMO_DISABLE=1" in result.stdout
    assert "VLLM_ENABLE_V1_MULTIPROCESSING=0" in result.stdout
