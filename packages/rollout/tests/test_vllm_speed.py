"""What is put in the place of vLLM's own parts: it is in use, and says so where it can't be."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from rollout_models import engine_config, make_prompts

from rl_rollout import SamplingConfig, vLLMRollout
from rl_rollout.batch.draws import draw_tokens, row_uniforms
from rl_rollout.engines.vllm import private_api

pytest.importorskip("vllm")


def test_rows_are_drawn_together_by_seed_and_position(engine: vLLMRollout) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        seen.append((seeds, positions))
        return row_uniforms(seeds, positions)

    private_api.draw_rows_together(engine.llm, uniforms, draw_tokens)
    try:
        prompts = make_prompts([3, 11, 40])
        prompts.meta_info["sampling"] = SamplingConfig(ignore_eos=True)
        engine.generate_sequences(prompts)
    finally:
        private_api.draw_rows_together(engine.llm, row_uniforms, draw_tokens)
    assert len(seen) == 16
    for step, (seeds, positions) in enumerate(seen):
        assert seeds.tolist() == [100, 101, 102]
        assert positions.tolist() == [step] * 3


def test_preempted_rows_get_the_tokens_they_would_have_got(models: dict[str, str]) -> None:
    prompts = make_prompts([40, 41, 42, 43, 44, 45])
    prompts.meta_info["sampling"] = SamplingConfig(ignore_eos=True)
    block = 2 * 2 * 2 * 32 * 4 * 32  # layers, keys and values, heads, width, bytes, tokens
    outs = []
    for memory in (32 << 20, 9 * block):
        config = engine_config(kv_cache_memory_bytes=memory, response_length=40, enable_prefix_caching=False)
        engine = vLLMRollout(config, models["untied"], torch.device("cpu"))
        core: Any = engine.llm.llm_engine.engine_core
        manager = core.engine_core.scheduler
        preempted: list[Any] = []
        original = manager._preempt_request
        manager._preempt_request = lambda *a, p=preempted, o=original, **k: (p.append(a), o(*a, **k))[1]
        try:
            outs.append(engine.generate_sequences(prompts).batch)
        finally:
            engine.close()
    assert preempted
    assert torch.equal(outs[0]["responses"], outs[1]["responses"])


def test_norms_run_in_the_kernel_and_keep_their_own_arithmetic_where_it_differs(
    engine: vLLMRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.llm.apply_model(private_api.use_cpu_norms) == [5]
    kernels: Any = torch.ops._C
    monkeypatch.setattr(kernels, "rms_norm", lambda out, x, weight, epsilon: out.copy_(x))
    assert engine.llm.apply_model(private_api.use_cpu_norms) == [0]


def test_a_vllm_with_other_parts_samples_by_itself_and_the_log_says_so(
    engine: vLLMRollout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(private_api, "_METADATA", ("temperature", "no_such_field"))
    with caplog.at_level(logging.WARNING):
        private_api.draw_rows_together(engine.llm, row_uniforms, draw_tokens)
    assert "no_such_field" in caplog.text


def test_a_row_of_top_p_is_renormalised_over_what_is_kept(engine: vLLMRollout) -> None:
    prompts = make_prompts([9, 17])
    # of two tokens the smaller is above 1 - top_p
    prompts.meta_info["sampling"] = SamplingConfig(top_k=2, top_p=0.9, ignore_eos=True)
    out = engine.generate_sequences(prompts).batch
    assert bool((out["rollout_log_probs"].exp() >= 0.1 - 1e-6).all())
    free = make_prompts([9, 17])
    free.meta_info["sampling"] = SamplingConfig(ignore_eos=True)
    assert float(out["rollout_log_probs"].mean()) > float(
        engine.generate_sequences(free).batch["rollout_log_probs"].mean()
    )
