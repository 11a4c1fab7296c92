"""Attention of one new token per row: query heads that share a key head become rows of one product.

torch's CPU kernel is several times as slow with one query per head as with a few (bfloat16, 128 cached
tokens, 16 rows, 9 heads on 3: 2.0 ms against 0.4), and transformers would first copy the cached keys for each
query head.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION_NAME = "rl_folded"


def use_folded_attention(model: PreTrainedModel) -> None:
    """Let a model that attends by torch's `scaled_dot_product_attention` fold the heads of single tokens."""
    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(ATTENTION_NAME, folded_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    model.set_attn_implementation(ATTENTION_NAME)


def folded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Queries `[B, H, T, D]` on keys and values `[B, Hkv, S, D]`: `[B, T, H, D]`, as transformers' sdpa.

    Folds where T is 1, H a multiple of Hkv and the mask the same for all heads; anything else is left to
    transformers.
    """
    rows, heads, tokens, width = query.shape
    groups = key.shape[1]
    one_mask = attention_mask is None or attention_mask.shape[1] == 1
    if tokens != 1 or heads == groups or not one_mask or dropout or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    folded = query.reshape(rows, groups, heads // groups, width)
    out = F.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, value.shape[-1]), None
