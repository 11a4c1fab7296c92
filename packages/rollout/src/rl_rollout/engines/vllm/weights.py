"""Weights into a live vLLM engine, and everything that must happen afterwards so that it uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from rl_rollout.engines.vllm import private_api

if TYPE_CHECKING:
    from vllm import LLM


def reload_engine(llm: LLM, named_tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Stream full tensors with Hugging Face names into the engine and drop what the old ones left behind."""
    private_api.reload_layers(llm, named_tensors)
    settle_weights(llm)


def settle_weights(llm: LLM) -> None:
    """What every update ends with: heads repacked, cached prefixes of the old weights forgotten."""
    llm.apply_model(private_api.repack_output_heads)
    llm.reset_prefix_cache()
