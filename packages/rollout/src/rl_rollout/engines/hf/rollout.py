"""Generation with transformers: no extra dependency, every platform, and the reference for the others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Cache, DynamicCache, PreTrainedModel

from rl_rollout.base import BaseRollout, NamedTensors, register_rollout
from rl_rollout.batch.draws import row_uniforms
from rl_rollout.batch.generation import Completion, GenerationRequest
from rl_rollout.batch.special_tokens import eos_token_ids, pad_token_id
from rl_rollout.config import RolloutConfig
from rl_rollout.engines.hf.cache import spread_prompts
from rl_rollout.engines.hf.folded_attention import use_folded_attention
from rl_rollout.engines.hf.growing_rows import GrowingRows
from rl_rollout.engines.hf.packed_head import PackedHead
from rl_rollout.engines.hf.sampling import sample_tokens
from rl_rollout.errors import RolloutConfigError, RolloutDataError
from rl_rollout.precision import with_dtype

_WIDTH_STEP = 32


class HFRollout(BaseRollout):
    """Owns an unsharded copy of the model in `config.dtype`, so ranks needn't step together.

    A prompt is computed alone, once for its samples; a row's new tokens always in a forward of
    `hf_batch_size` rows whose width depends on that row alone: they are the same alone or in any batch, also
    in bfloat16, where shapes change roundings.
    """

    def __init__(
        self, config: RolloutConfig, model_path: str, device: torch.device, tokenizer: Any = None
    ) -> None:
        if config.tensor_model_parallel_size != 1:
            raise RolloutConfigError(
                f"tensor_model_parallel_size={config.tensor_model_parallel_size}: the transformers engine "
                "holds a whole model per rank; set it to 1 or use rollout.name=vllm"
            )
        config = with_dtype(config, device)
        model_config = AutoConfig.from_pretrained(model_path, trust_remote_code=config.trust_remote_code)
        self.eos_ids = eos_token_ids(model_path, model_config, tokenizer)
        super().__init__(config, pad_id=pad_token_id(self.eos_ids, tokenizer))
        self.device = device
        self.tokenizer = tokenizer
        self.model = _load_model(config, model_path, model_config, device)
        if device.type == "cpu":
            use_folded_attention(self.model)
        head: Any = cast(Any, self.model).get_output_embeddings()
        self._head = PackedHead(head, config.hf_batch_size)
        self._last_only: dict[str, Any] = (
            {"logits_to_keep": 1}
            if "logits_to_keep" in inspect.signature(self.model.forward).parameters
            else {}
        )
        self._growing: GrowingRows | None = None

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See `BaseRollout.generate`."""
        by_width: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            by_width.setdefault(_width(request), []).append(place)
        completions = [Completion() for _ in requests]
        for width, places in by_width.items():
            for start in range(0, len(places), self.config.hf_batch_size):
                chunk = places[start : start + self.config.hf_batch_size]
                for grown in self._grow([requests[p] for p in chunk], width):
                    for place, done in zip(chunk, grown, strict=True):
                        completions[place] = done
        return completions

    def step(self) -> dict[str, Completion]:
        """One more token for the rows being computed, which are the oldest request and those queued with it
        whose prompts are about as long; the requests that it finished."""
        self.check_ready()
        if self._growing is None and self._queued:
            width = _width(next(iter(self._queued.values())))
            keys = [key for key, request in self._queued.items() if _width(request) == width]
            keys = keys[: self.config.hf_batch_size]
            self._growing = GrowingRows(keys, self._grow([self._queued[key] for key in keys], width))
        if self._growing is None:
            return {}
        done = self._growing.step()
        if self._growing.is_done:
            self._growing = None
        for key in done:
            self._queued.pop(key, None)
        return done

    def abort(self, keys: list[str]) -> dict[str, Completion]:
        """See `BaseRollout.abort`."""
        super().abort(keys)
        cut = {} if self._growing is None else self._growing.cut(keys)
        if self._growing is not None and self._growing.is_done:
            self._growing = None
        return cut

    @torch.inference_mode()
    def _grow(self, requests: list[GenerationRequest], width: int) -> Iterator[list[Completion]]:
        """Complete at most `hf_batch_size` rows of at most `width` prompt tokens; gives them, the same
        objects, after each token. Whoever sets a row's finish reason ends it."""
        longest = max(r.max_tokens for r in requests)
        seeds = torch.tensor([r.seed for r in requests])
        uniforms = row_uniforms(seeds[:, None], torch.arange(longest)).to(self.device)
        samplings = [r.sampling for r in requests]
        completions = [Completion(finish_reason="") for _ in requests]
        mask = self._left_padded_mask(requests, width, longest)
        positions = mask[:, :width].sum(-1, keepdim=True) - 1
        logits, cache = self._read_prompts(requests, width, longest)
        ids = torch.zeros_like(positions)
        for step in range(longest):
            tokens, log_probs = sample_tokens(logits, samplings, uniforms[:, step])
            self._append(requests, completions, tokens.tolist(), log_probs.tolist())
            yield completions
            if all(c.finish_reason for c in completions):
                break
            ids[: len(requests), 0] = tokens
            positions = positions + 1
            logits = self._forward(ids, mask[:, : width + step + 1], positions, cache)[: len(requests)]

    def _read_prompts(
        self, requests: list[GenerationRequest], width: int, longest: int
    ) -> tuple[Tensor, Cache]:
        """Logits [rows, V] of the first new tokens, and the cache of the prompts of `hf_batch_size` rows.

        Each prompt is computed alone and at its own length, once for all rows that have it.
        """
        places: dict[tuple[int, ...], int] = {}
        owners = [places.setdefault(tuple(r.prompt_ids), len(places)) for r in requests]
        logits, caches = [], []
        for prompt in places:
            ids = torch.tensor([prompt], device=self.device)
            caches.append(DynamicCache())
            positions = torch.arange(len(prompt), device=self.device)[None]
            logits.append(self._forward(ids, torch.ones_like(ids), positions, caches[-1]))
        cache = spread_prompts(caches, owners, self.config.hf_batch_size, width, longest)
        return torch.cat(logits)[owners], cache

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        )
        return cast(Tensor, output.logits[:, -1])

    def _left_padded_mask(self, requests: list[GenerationRequest], width: int, longest: int) -> Tensor:
        """[hf_batch_size, width + longest]: 0 before a prompt; rows without a request see one position."""
        mask = torch.ones(self.config.hf_batch_size, width + longest, dtype=torch.long)
        lengths = torch.ones(self.config.hf_batch_size, dtype=torch.long)
        lengths[: len(requests)] = torch.tensor([len(r.prompt_ids) for r in requests])
        mask[:, :width] = torch.arange(width) >= width - lengths[:, None]
        return mask.to(self.device)

    def _append(
        self,
        requests: list[GenerationRequest],
        completions: list[Completion],
        tokens: list[int],
        log_probs: list[float],
    ) -> None:
        for request, done, token, log_prob in zip(requests, completions, tokens, log_probs, strict=True):
            if done.finish_reason:
                continue
            done.token_ids.append(token)
            done.log_probs.append(log_prob)
            if self._stops(request, done.token_ids):
                done.finish_reason = "stop"
            elif len(done.token_ids) == request.max_tokens:
                done.finish_reason = "length"

    def _stops(self, request: GenerationRequest, token_ids: list[int]) -> bool:
        if token_ids[-1] in self.eos_ids and not request.sampling.ignore_eos:
            return True
        if not request.sampling.stop:
            return False
        if self.tokenizer is None:
            raise RolloutConfigError("stop strings need a tokenizer: pass one to build_rollout")
        text = self.tokenizer.decode(token_ids)
        return any(stop in text for stop in request.sampling.stop)

    @torch.no_grad()
    def load_weights(self, named_tensors: NamedTensors) -> None:
        """See `BaseRollout.load_weights`. There is no cache to drop. Raises RolloutDataError for a name the
        model lacks and, at the end, for parameters that got nothing."""
        targets = self.model.state_dict(keep_vars=True)
        filled: set[int] = set()
        for name, tensor in named_tensors:
            if name not in targets:
                raise RolloutDataError(f"the model has no weight {name!r}; use Hugging Face names")
            targets[name].data.copy_(tensor)
            filled.add(targets[name].data_ptr())
        missing = [n for n, p in self.model.named_parameters() if p.data_ptr() not in filled]
        if missing:
            raise RolloutDataError(f"{len(missing)} weights did not arrive, the first is {missing[0]!r}")
        self._head.repack()

    def close(self) -> None:
        """Free the model."""
        super().close()
        self.__dict__.pop("model", None)


def _width(request: GenerationRequest) -> int:
    """Columns that a prompt takes: rows of one width are computed together."""
    return -(-len(request.prompt_ids) // _WIDTH_STEP) * _WIDTH_STEP


def _load_model(
    config: RolloutConfig, model_path: str, model_config: Any, device: torch.device
) -> PreTrainedModel:
    options: dict[str, Any] = {
        "dtype": getattr(torch, config.dtype),
        "trust_remote_code": config.trust_remote_code,
    }
    auto: Any = AutoModelForCausalLM
    if config.load_format == "dummy":
        with torch.random.fork_rng():
            model = auto.from_config(model_config, **options)
    else:
        model = auto.from_pretrained(model_path, **options)
    return cast(PreTrainedModel, model.to(device).eval())


@register_rollout("hf")
def build_hf_rollout(
    config: RolloutConfig, model_path: str, device: torch.device, tokenizer: Any
) -> BaseRollout:
    """Factory of `rollout.name=hf`."""
    return HFRollout(config, model_path, device, tokenizer)
