"""A two-layer Llama with random weights and a character tokenizer: small, not fake.

`python -m rl_trainer.tiny` trains it to copy words, in about a second a step.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from .cli import main
from .tasks import LETTERS, copy_rows, write_jsonl

WORD_LENGTH = 3
CHARACTERS = f"={LETTERS}"


def make_tiny_model(folder: Path, seed: int = 0, characters: str = CHARACTERS) -> Path:
    """Write the model and its tokenizer as a Hugging Face folder; the same weights for the same seed.

    Every character of `characters` is one token; there are no others but `<pad> <bos> <eos> <unk>`.
    """
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    folder.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def tiny_overrides(folder: Path) -> list[str]:
    """Make model and data in `folder`; give the overrides that point a configuration at them."""
    model = make_tiny_model(folder / "model")
    train = write_jsonl(folder / "train.jsonl", copy_rows(512, WORD_LENGTH, seed=1))
    val = write_jsonl(folder / "val.jsonl", copy_rows(32, WORD_LENGTH, seed=2))
    return [
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files=[{train}]",
        f"data.val_files=[{val}]",
        f"trainer.default_local_dir={folder / 'run'}",
    ]


def run(arguments: Sequence[str]) -> int:
    """`[configuration] overrides...`; the default configuration is tiny_grpo."""
    words = list(arguments)
    source = words.pop(0) if words and "=" not in words[0] else "tiny_grpo"
    return main(["train", source, *tiny_overrides(Path("runs") / source), *words])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
