"""Weights into a live vLLM engine, and everything that must happen afterwards so that it uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from vllm import LLM


def reload_engine(llm: LLM, named_tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Stream full tensors with Hugging Face names into the engine and drop what the old ones left behind."""
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": named_tensors})
    settle_weights(llm)


def settle_weights(llm: LLM) -> None:
    """What every update ends with: heads repacked, cached prefixes of the old weights forgotten."""
    llm.apply_model(repack_output_heads)
    llm.reset_prefix_cache()


def repack_output_heads(model: nn.Module) -> None:
    """Repack each output head from its weight.

    A head tied to the embedding loads nothing of its own, so vLLM never repacks it after a reload: it
    would keep multiplying by the old matrix, silently.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            method: Any = module.quant_method
            method.process_weights_after_loading(module)
