"""Builders for tests, importable by the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_protocol import DataProto
from rl_rollout import RolloutConfig, engine_env

PROMPT, RESPONSE, EOS = 48, 16, 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<bos>{{ m.role }} {{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant {% endif %}"
)


def set_engine_environment() -> None:
    """What a launcher does: set the engine's variables before vllm is imported."""
    os.environ.update(engine_env("cuda" if torch.cuda.is_available() else "cpu", offline=True))


def make_tiny_model(folder: Path, *, tied: bool, eos: int = EOS) -> str:
    """A two-layer Llama with random weights and a tokenizer of one token per character."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": EOS, "<unk>": 3, "\n": 4}
    vocab |= {chr(ord(" ") + i): 5 + i for i in range(95)}
    vocab |= {f"w{i}": i for i in range(len(vocab), 256)}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **special)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
            bos_token_id=1, eos_token_id=eos, pad_token_id=0, tie_word_embeddings=tied,
            initializer_range=0.1, dtype="float32",
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def make_prompts(lengths: list[int], *, seed: int = 0, width: int = PROMPT, **columns: Any) -> DataProto:
    """Random left-padded prompts of the given lengths, row i with sampling seed 100 + i."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 250, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) >= width - torch.tensor(lengths).long()[:, None]).long()
    tensors = {
        "input_ids": ids * mask,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp_min(0),
        "seeds": torch.arange(100, 100 + len(lengths)),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def engine_config(**changes: Any) -> RolloutConfig:
    """A config of the tiny model: float32 and the checkpoint's weights, unless changed."""
    settings: dict[str, Any] = {
        "dtype": "float32", "prompt_length": PROMPT, "response_length": RESPONSE, "load_format": "auto",
        "max_num_seqs": 32, "hf_batch_size": 4, "kv_cache_memory_bytes": 32 << 20,
    }  # fmt: skip
    return RolloutConfig(**(settings | changes))


def token_log_probs(model: torch.nn.Module, batch: DataProto, temperature: float = 1.0) -> Tensor:
    """The model's log-probs [B, R] of a batch's responses, from one padded forward."""
    tensors = batch.batch
    assert tensors is not None
    logits = model(
        input_ids=tensors["input_ids"],
        attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"],
        use_cache=False,
    ).logits
    width = tensors["responses"].shape[1]
    scaled = logits[:, -width - 1 : -1].float() / temperature
    return scaled.log_softmax(-1).gather(-1, tensors["responses"][..., None])[..., 0]


def largest_difference(a: Tensor, b: Tensor, mask: Tensor) -> float:
    """Largest absolute difference where `mask` is set."""
    return float((a - b)[mask.bool()].detach().abs().max())
