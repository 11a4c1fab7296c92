"""A two-layer Llama with random weights and a character tokenizer: small, not fake."""

from __future__ import annotations

from pathlib import Path

from ..data.tasks import LETTERS

CHARACTERS = f"={LETTERS}"


def make_tiny_model(folder: Path, seed: int = 0, characters: str = CHARACTERS) -> Path:
    """Write the model and its tokenizer as a Hugging Face folder; the same weights for the same seed.

    Every character of `characters` is one token; there are no others but `<pad> <bos> <eos> <unk>`.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

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
