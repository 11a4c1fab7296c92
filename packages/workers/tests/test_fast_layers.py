"""The fast norm and rotation: equal to the model's own, and only where the model has that form."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    PhiConfig,
    Qwen3Config,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from workers_models import VOCAB

from rl_workers.compute.rms_norm import use_fast_norms
from rl_workers.compute.rotary import rotate_heads, use_fast_rotary
from rl_workers.model.fast_layers import use_fast_layers

EPS = 1e-5


def both_norms(width: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    own = LlamaRMSNorm(width, EPS)
    nn.init.normal_(own.weight, 1.0, 0.3)
    own = own.to(dtype)
    fast = nn.Sequential(copy.deepcopy(own))
    assert use_fast_norms(fast) == 1
    return own, fast


def values_and_gradients(layer: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = layer(x)
    out.backward(grad.to(out.dtype))
    return [out.detach(), x.grad, *(p.grad for p in layer.parameters())]  # type: ignore[list-item]


def distance(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("shape", [(1, 1, 8), (2, 3000, 576), (1, 5, 4, 32), (1, 0, 8)])
def test_the_norm_equals_the_models_own_in_float32(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    own, fast = both_norms(shape[-1], torch.float32)
    x, grad = 3.0 * torch.randn(shape), torch.randn(shape)
    for found, wanted in zip(
        values_and_gradients(fast, x, grad), values_and_gradients(own, x, grad), strict=True
    ):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        scale = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6 * max(1.0, scale))


def test_the_norm_is_no_further_from_the_truth_in_bfloat16_than_the_models_own() -> None:
    torch.manual_seed(0)
    own, fast = both_norms(576, torch.bfloat16)
    x, grad = torch.randn(1, 900, 576).bfloat16(), torch.randn(1, 900, 576).bfloat16()
    truth = values_and_gradients(copy.deepcopy(own).float(), x.float(), grad.float())
    for exact, found, model in zip(
        truth, values_and_gradients(fast, x, grad), values_and_gradients(own, x, grad), strict=True
    ):
        assert found.dtype == torch.bfloat16
        assert distance(found, exact) <= 1.01 * distance(model, exact)


def test_the_norm_of_a_transposed_view_and_of_an_untrained_weight() -> None:
    torch.manual_seed(0)
    own, fast = both_norms(16, torch.float32)
    x = torch.randn(1, 4, 7, 16).transpose(1, 2)
    torch.testing.assert_close(fast(x), own(x))
    fast.requires_grad_(False)
    x = x.detach().requires_grad_()
    fast(x).sum().backward()
    assert x.grad is not None and fast[0].weight.grad is None  # type: ignore[index]


class MeanNorm(nn.Module):
    """No RMSNorm, whatever its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = EPS

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(-1, keepdim=True))


class CentredRMSNorm(MeanNorm):
    """The name, but another computation."""


def test_a_norm_of_another_form_is_left_alone() -> None:
    layers = nn.Sequential(
        Gemma2RMSNorm(8, EPS), nn.LayerNorm(8), nn.RMSNorm(8, EPS), MeanNorm(), CentredRMSNorm()
    )
    x = torch.randn(2, 8)
    before = [layer(x).detach() for layer in layers]
    assert use_fast_norms(layers) == 1  # torch's own has the form
    assert ["forward" in vars(layer) for layer in layers] == [False, False, True, False, False]
    for layer, wanted in zip(layers, before, strict=True):
        torch.testing.assert_close(layer(x), wanted)


def test_a_model_on_meta_is_changed_before_it_has_weights() -> None:
    with torch.device("meta"):
        model = nn.Sequential(LlamaRMSNorm(8, EPS))
    assert use_fast_norms(model) == 1
    assert use_fast_norms(model) == 0  # and once
    model.to_empty(device="cpu")
    nn.init.constant_(model[0].weight, 2.0)
    torch.testing.assert_close(model(torch.ones(1, 8)), torch.full((1, 8), 2.0 / (1 + EPS) ** 0.5))


def rotary_inputs(dtype: torch.dtype) -> tuple[list[Tensor], Tensor, Tensor]:
    """Heads as a projection gives them, ``[2, H, T, D]`` views, and angles that differ from row to row."""
    heads = [torch.randn(2, 50, n, 64).to(dtype).transpose(1, 2).requires_grad_() for n in (6, 2)]
    angles = (10.0 * torch.rand(2, 50, 32)).repeat(1, 1, 2)
    return heads, angles.cos().to(dtype), angles.sin().to(dtype)


def test_the_rotation_equals_the_models_own_in_float32() -> None:
    torch.manual_seed(0)
    heads, cos, sin = rotary_inputs(torch.float32)
    for x, wanted in zip(heads, apply_rotary_pos_emb(*heads, cos, sin), strict=True):
        found, grad = rotate_heads(x, cos, sin), torch.randn(x.shape)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        (own,), (fast,) = torch.autograd.grad(wanted, x, grad), torch.autograd.grad(found, x, grad)
        torch.testing.assert_close(fast, own, rtol=1e-6, atol=1e-6)


def test_the_rotation_is_no_further_from_the_truth_in_bfloat16_than_the_models_own() -> None:
    torch.manual_seed(0)
    (x, k), cos, sin = rotary_inputs(torch.bfloat16)
    grad = torch.randn(x.shape).bfloat16()
    wide = x.detach().float().requires_grad_()
    exact = rotate_heads(wide, cos.float(), sin.float())
    own, fast = apply_rotary_pos_emb(x, k, cos, sin)[0], rotate_heads(x, cos, sin)
    assert fast.dtype == torch.bfloat16
    assert distance(fast, exact) <= distance(own, exact)
    truth = torch.autograd.grad(exact, wide, grad.float())[0]
    gradients = [torch.autograd.grad(y, x, grad)[0] for y in (fast, own)]
    assert distance(gradients[0], truth) <= distance(gradients[1], truth)


TINY = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("config", "norms", "rotations"),
    [
        (LlamaConfig(**TINY), 5, 2),
        (Qwen3Config(**TINY), 9, 2),
        (PhiConfig(**TINY, partial_rotary_factor=0.5), 0, 2),
        (CohereConfig(**TINY), 0, 0),  # layer norms, and pairs of neighbours rotate
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_a_whole_model_computes_what_it_did(config: object, norms: int, rotations: int) -> None:
    torch.manual_seed(0)
    own = AutoModelForCausalLM.from_config(config)
    fast = copy.deepcopy(own)
    file_function = modeling_llama.apply_rotary_pos_emb
    assert (use_fast_norms(fast), use_fast_rotary(fast)) == (norms, rotations)
    assert modeling_llama.apply_rotary_pos_emb is file_function  # no other model is touched
    ids = torch.randint(VOCAB, (2, 12))
    for model in (own, fast):
        model(ids, labels=ids, use_cache=False).loss.backward()
    for (name, wanted), found in zip(own.named_parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        (
            Qwen3Config(**TINY),
            ["9 of 9 RMS norms in the fast form", "2 of 2 rotary embeddings in the fast form"],
        ),
        (PhiConfig(**TINY, partial_rotary_factor=0.5), ["2 of 2 rotary embeddings in the fast form"]),
        (CohereConfig(**TINY), ["none of 2 rotary embeddings agrees with the fast form"]),
        (
            GemmaConfig(**TINY),
            ["none of 5 RMS norms agrees with", "2 of 2 rotary embeddings in the fast form"],
        ),
        (GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4), []),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_the_log_says_how_many_layers_are_fast(
    config: object, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with caplog.at_level("INFO", "rl_workers"):
        use_fast_layers(model)
    assert len(caplog.messages) == len(lines)
    for message, words in zip(caplog.messages, lines, strict=True):
        assert message.startswith(type(model).__name__) and words in message
