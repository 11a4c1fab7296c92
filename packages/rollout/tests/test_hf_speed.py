"""What makes the transformers engine quick on a CPU: in use, right, and given up where it isn't."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rollout_models import engine_config, make_prompts
from torch import nn

from rl_rollout import HFRollout, SamplingConfig
from rl_rollout.engines.hf.packed_head import PackedHead

CPU = torch.device("cpu")


def test_a_prompt_is_read_once_for_all_its_samples(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = HFRollout(engine_config(hf_batch_size=8), models["untied"], CPU)
    prompts = make_prompts([9, 17, 17])[[0, 0, 1, 0, 2, 1]]
    prompts.batch["seeds"] = torch.arange(6)
    prompts.meta_info["sampling"] = SamplingConfig(ignore_eos=True)
    widths: list[tuple[int, ...]] = []
    original = rollout._forward

    def forward(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        widths.append(tuple(ids.shape))
        return original(ids, *rest)

    monkeypatch.setattr(rollout, "_forward", forward)
    out = rollout.generate_sequences(prompts)
    assert [shape for shape in widths if shape != (8, 1)] == [(1, 9), (1, 17), (1, 17)]
    assert len({tuple(row) for row in out.batch["responses"].tolist()}) == 6


def test_the_laid_out_head_is_the_head_and_follows_its_weights() -> None:
    head = nn.Linear(64, 500, bias=True)
    packed, x = PackedHead(head, 4), torch.randn(4, 1, 64)
    for _ in range(2):
        with torch.no_grad():
            assert torch.allclose(head(x), F.linear(x, head.weight, head.bias), atol=1e-5)
            assert torch.equal(head(x[:1]), F.linear(x[:1], head.weight, head.bias))
            head.weight.mul_(-2)
        packed.repack()
    assert head(x).requires_grad


def test_a_head_that_can_not_be_laid_out_is_multiplied_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: PackedHead, weight: torch.Tensor) -> bool:
        return False

    monkeypatch.setattr(PackedHead, "_agrees", refuse)
    head, x = nn.Linear(64, 500, bias=False), torch.randn(4, 64)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        PackedHead(head, 4)
        assert torch.equal(head(x), F.linear(x, head.weight))
    assert "not laid out" in caplog.text
