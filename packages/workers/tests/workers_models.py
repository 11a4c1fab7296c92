"""Tiny models with real architectures and random weights, and batches for them."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

VOCAB = 128


def tiny_config(*, tied: bool = False, kv_heads: int = 4) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        dtype="float32",
    )


def save_tokenizer(path: Path) -> None:
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 3}
    vocab |= {chr(ord(" ") + i): 4 + i for i in range(95)}
    vocab |= {f"<w{i}>": i for i in range(len(vocab), VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    fast.chat_template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    fast.save_pretrained(path)


def save_tiny_llama(path: Path, *, tied: bool = False, kv_heads: int = 4, seed: int = 0) -> str:
    torch.manual_seed(seed)
    LlamaForCausalLM(tiny_config(tied=tied, kv_heads=kv_heads)).save_pretrained(path)
    save_tokenizer(path)
    return str(path)


def save_tiny_classifier(path: Path, *, seed: int = 1) -> str:
    torch.manual_seed(seed)
    config = tiny_config()
    config.num_labels = 1
    LlamaForSequenceClassification(config).save_pretrained(path)
    save_tokenizer(path)
    return str(path)


def make_batch(
    groups: int, n: int, prompt: int, response: int, *, seed: int = 0, left: bool = True, holes: bool = False
) -> dict[str, torch.Tensor]:
    """Rows of ``groups`` prompts with ``n`` ragged responses each, the fields of a training batch."""
    g = torch.Generator().manual_seed(seed)
    rows = groups * n
    length = prompt + response
    ids = torch.zeros(rows, length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for group in range(groups):
        p = int(torch.randint(1, prompt + 1, (), generator=g))
        tokens = torch.randint(4, VOCAB, (p,), generator=g)
        for row in range(group * n, group * n + n):
            r = int(torch.randint(1, response + 1, (), generator=g))
            where = slice(prompt - p, prompt) if left else slice(0, p)
            ids[row, where], mask[row, where] = tokens, 1
            ids[row, prompt : prompt + r] = torch.randint(4, VOCAB, (r,), generator=g)
            mask[row, prompt : prompt + r] = 1
    response_mask = mask[:, prompt:].clone()
    if holes:
        response_mask[:, 1::3] = 0
    weights = 1.0 / max(1, int(response_mask.sum()))
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp_min(0),
        "response_mask": response_mask,
        "responses": ids[:, prompt:],
        "advantages": torch.randn(rows, response, generator=g),
        "row_weights": torch.full((rows,), weights),
    }
