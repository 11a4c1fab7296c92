"""A Hugging Face model without memory, and what to fill in where its folder has no tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from rl_workers.compute.attention import ATTENTION_NAME, register_packed_attention
from rl_workers.config import ModelConfig
from rl_workers.errors import CheckpointError, ModelSupportError

Initialiser = Callable[[str, torch.Size], Tensor]
"""Makes the full value of a parameter that the files do not hold: a new head, an adapter."""


def nothing_new(name: str, shape: torch.Size) -> Tensor:
    """The initialiser of a model all of whose parameters come from its files."""
    raise CheckpointError(f"the model's files have no tensor for {name} {tuple(shape)}")


def build_on_meta(
    auto_class: Any, config: ModelConfig, dtype: torch.dtype, **overrides: Any
) -> PreTrainedModel:
    """The model of ``config.path`` without storage, in eval mode: dropout has no place in log-probabilities.

    Raises:
        CheckpointError: the folder holds no model configuration.
        ModelSupportError: the model does not use transformers' attention interface.
    """
    register_packed_attention()
    if not (Path(config.path) / "config.json").is_file():
        raise CheckpointError(
            f"{config.path!r} has no config.json: model.path must be a Hugging Face model's folder"
        )
    hf_config = AutoConfig.from_pretrained(
        config.path, trust_remote_code=config.trust_remote_code, **overrides
    )
    attention = ATTENTION_NAME if config.use_remove_padding else _padded_attention(hf_config)
    with torch.device("meta"):
        model = auto_class.from_config(
            hf_config, dtype=dtype, attn_implementation=attention, trust_remote_code=config.trust_remote_code
        )
    if config.use_remove_padding and not getattr(model, "_supports_attention_backend", False):
        raise ModelSupportError(
            f"{type(model).__name__} ({config.path!r}) does not use transformers' attention interface, which "
            "packed rows need: set model.use_remove_padding=false"
        )
    model.eval()
    return cast(PreTrainedModel, model)


def _padded_attention(hf_config: Any) -> str:
    """sdpa, except where it would silently leave out a cap on the attention's logits."""
    return "eager" if getattr(hf_config.get_text_config(), "attn_logit_softcapping", None) else "sdpa"
