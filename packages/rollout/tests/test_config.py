from __future__ import annotations

import pytest

from rl_rollout import RolloutConfig, RolloutConfigError, SamplingConfig, UnknownRolloutError, build_rollout


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("top_p", 0.0), ("top_p", 1.1), ("top_k", -2), ("max_tokens", -1)],
)
def test_bad_sampling_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(RolloutConfigError, match=f"{name}={value}"):
        SamplingConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "fp32"),
        ("load_format", "safetensors"),
        ("tensor_model_parallel_size", 0),
        ("gpu_memory_utilization", 1.5),
        ("temperature", -1.0),
        ("block_size", 0),
        ("kv_cache_memory_bytes", -1),
    ],
)
def test_bad_engine_settings_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RolloutConfigError, match=name):
        RolloutConfig(**{name: value})


def test_training_sampling_is_the_configs_and_validation_is_greedy() -> None:
    config = RolloutConfig(temperature=0.7, top_p=0.9, top_k=5)
    assert config.sampling() == SamplingConfig(temperature=0.7, top_p=0.9, top_k=5)
    assert config.val.greedy
    assert config.val.logprob_temperature == 1.0


def test_unknown_engine_lists_what_is_built() -> None:
    with pytest.raises(UnknownRolloutError, match=r"'sglang' is not built; available: .*hf, .*vllm"):
        build_rollout(RolloutConfig(name="sglang"), "nowhere")
