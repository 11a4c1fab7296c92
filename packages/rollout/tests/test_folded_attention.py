from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rl_rollout.engines.hf import folded_attention as folding
from rl_rollout.engines.hf.folded_attention import folded_attention, use_folded_attention


def inputs(tokens: int, heads: int, groups: int, masked: bool) -> tuple[nn.Module, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = heads // groups, True  # type: ignore[assignment]
    mask = torch.rand(3, 1, tokens, 20, generator=generator) > 0.3
    mask[..., -1] = True
    return module, {
        "query": torch.randn(3, heads, tokens, 16, generator=generator),
        "key": torch.randn(3, groups, 20, 16, generator=generator),
        "value": torch.randn(3, groups, 20, 16, generator=generator),
        "attention_mask": mask if masked else None,
        "scaling": 0.3,
    }


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("tokens", "heads", "groups"), [(1, 6, 2), (1, 4, 1), (1, 4, 4), (5, 6, 2)])
def test_equals_transformers_attention(tokens: int, heads: int, groups: int, masked: bool) -> None:
    module, arguments = inputs(tokens, heads, groups, masked)
    expected, _ = sdpa_attention_forward(module, **arguments)
    found, _ = folded_attention(module, **arguments)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_a_mask_per_head_is_kept() -> None:
    module, arguments = inputs(1, 6, 2, True)
    arguments["attention_mask"] = torch.rand(3, 6, 1, 20) > 0.3
    arguments["attention_mask"][..., -1] = True
    expected, _ = sdpa_attention_forward(module, **arguments)
    torch.testing.assert_close(folded_attention(module, **arguments)[0], expected)


def make_model(**options: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, pad_token_id=0, **options,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_a_grouped_model_generates_the_same_tokens_with_folded_heads() -> None:
    model = make_model()
    ids = torch.randint(1, 64, (3, 9))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # left-padded
    options: dict[str, Any] = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 12}
    expected = model.generate(ids, **options)
    use_folded_attention(model)
    with patch.object(folding, "sdpa_attention_forward", wraps=sdpa_attention_forward) as unfolded:
        assert torch.equal(model.generate(ids, **options), expected)
    assert unfolded.call_count == 2  # the prompt, once in each layer


def test_a_model_with_an_attention_of_its_own_keeps_it() -> None:
    model = make_model(attn_implementation="eager")
    use_folded_attention(model)
    assert model.config._attn_implementation == "eager"
