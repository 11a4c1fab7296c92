"""Which tokens end a response, and which one pads, from everything a checkpoint says about them."""

from __future__ import annotations

import contextlib
from typing import Any

from transformers import GenerationConfig, PretrainedConfig


def _as_ids(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [int(v) for v in value] if isinstance(value, (list, tuple)) else []


def eos_token_ids(model_path: str, model_config: PretrainedConfig, tokenizer: Any = None) -> list[int]:
    """Every EOS id: the tokenizer's, the model config's and generation_config.json's, in that order.

    Chat models often end a turn with another token than the tokenizer's EOS, named only in the last.
    """
    found = _as_ids(getattr(tokenizer, "eos_token_id", None))
    found += _as_ids(getattr(model_config, "eos_token_id", None))
    with contextlib.suppress(OSError):  # a checkpoint need not have the file
        found += _as_ids(GenerationConfig.from_pretrained(model_path).eos_token_id)
    return list(dict.fromkeys(found))


def pad_token_id(eos_ids: list[int], tokenizer: Any = None) -> int:
    """The tokenizer's pad id; where it has none, the first EOS; else 0. Masks never look at it."""
    pad = getattr(tokenizer, "pad_token_id", None)
    if isinstance(pad, int):
        return pad
    return eos_ids[0] if eos_ids else 0
