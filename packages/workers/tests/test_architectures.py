"""Other models than Llama: log-probabilities as their own forward pass has them, or an error that helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    MistralConfig,
    MixtralConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from workers_models import VOCAB, make_batch
from workers_programs import log_probs
from workers_ranks import run_ranks

BATCH = make_batch(2, 3, 9, 7, seed=31)
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SMALL),
    "granite (scaled logits)": GraniteConfig(**SMALL, logits_scaling=3.0),
    "cohere (scaled logits)": CohereConfig(**SMALL, logit_scale=0.5),
    "mistral (sliding window)": MistralConfig(**SMALL, sliding_window=4),
    "mixtral (converted names)": MixtralConfig(**SMALL, num_local_experts=2),
    "phi (bias in the head)": PhiConfig(**SMALL),
}


def save(config: PretrainedConfig, path: Path) -> str:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(path)
    return str(path)


def own_log_probs(path: str) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    out = torch.zeros(BATCH["response_mask"].shape)
    for row in range(len(out)):
        ids = BATCH["input_ids"][row][BATCH["attention_mask"][row].bool()]
        with torch.no_grad():
            log_p = torch.log_softmax(model(ids[None], use_cache=False).logits[0].float(), -1)
        length = int(BATCH["response_mask"][row].sum())
        out[row, :length] = log_p[:-1].gather(1, ids[1:, None])[-length:, 0]
    return out.numpy()


@pytest.mark.parametrize("name", list(MODELS))
def test_packed_on_two_ranks(name: str, tmp_path: Path) -> None:
    path = save(MODELS[name], tmp_path / "model")
    found = run_ranks(tmp_path, 2, log_probs, path, BATCH, "shared", 64)
    np.testing.assert_allclose(np.concatenate([f[0] for f in found]), own_log_probs(path), atol=2e-5)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, final_logit_softcapping=5.0),
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4),
    ],
    ids=["gemma2 (soft caps)", "gpt2"],
)
def test_padded(config: PretrainedConfig, tmp_path: Path) -> None:
    path = save(config, tmp_path / "model")
    if config.model_type == "gemma2":
        with pytest.raises(AssertionError, match=r"softcap(.|\n)*use_remove_padding=False"):
            run_ranks(tmp_path, 1, log_probs, path, BATCH, "shared", 64)
    found = run_ranks(tmp_path, 1, log_probs, path, BATCH, "padded", 64)[0][0]
    np.testing.assert_allclose(found, own_log_probs(path), atol=2e-5)


def test_the_rotary_frequencies_are_computed_not_left_over(tiny_model: str, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(tiny_model)
    config.rope_parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    path = save(config, tmp_path / "model")
    found = run_ranks(tmp_path, 1, log_probs, path, BATCH, "packed", 64)[0][0]
    np.testing.assert_allclose(found, own_log_probs(path), atol=2e-5)
