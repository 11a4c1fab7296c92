"""What only a GPU can show: `pytest packages/rollout/tests -m gpu` with one and vLLM's CUDA build."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollout_models import engine_config, largest_difference, make_prompts, token_log_probs
from transformers import AutoModelForCausalLM

from rl_rollout import FSDPVLLMShardingManager, HFRollout, SamplingConfig, vLLMRollout

pytestmark = pytest.mark.gpu


def test_sleep_gives_memory_back_and_a_push_makes_the_engine_whole(models: dict[str, str]) -> None:
    pytest.importorskip("vllm")
    config = engine_config(
        load_format="dummy", block_size=16, kv_cache_memory_bytes=256 << 20, gpu_memory_utilization=0.3
    )
    engine = vLLMRollout(config, models["tied"], torch.device("cuda"))
    model: Any = AutoModelForCausalLM.from_pretrained(models["tied"], dtype=torch.float32).cuda()
    manager = FSDPVLLMShardingManager(model, engine)
    prompts = make_prompts([3, 40, 41])
    try:
        for scale in (1.0, 1.5):
            with torch.no_grad():
                model.model.norm.weight.mul_(scale)
            with manager:
                awake = torch.cuda.mem_get_info()[0]
                out = engine.generate_sequences(prompts)
            assert torch.cuda.mem_get_info()[0] - awake > 200 << 20
            with torch.no_grad():
                expected = token_log_probs(model, out.to("cuda"))
            ours = out.batch["rollout_log_probs"].cuda()
            assert largest_difference(ours, expected, out.batch["response_mask"].cuda()) < 1e-2
    finally:
        engine.close()


def test_transformers_answers_on_a_gpu_as_its_model_does(models: dict[str, str]) -> None:
    rollout = HFRollout(engine_config(), models["untied"], torch.device("cuda"))
    prompts = make_prompts([3, 40])
    prompts.meta_info["sampling"] = SamplingConfig(temperature=0.7)
    out = rollout.generate_sequences(prompts)
    with torch.no_grad():
        expected = token_log_probs(rollout.model, out.to("cuda"), 0.7)
    ours = out.batch["rollout_log_probs"].cuda()
    assert largest_difference(ours, expected, out.batch["response_mask"].cuda()) < 1e-3
