"""The interface every engine has, and the registry that builds one by name."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_protocol import DataProto
from rl_rollout.batch.generation import Completion, GenerationRequest, derive_seed, usable_seed
from rl_rollout.batch.responses import row_samplings, row_seeds, to_batch, unpad_prompts
from rl_rollout.config import RolloutConfig, SamplingConfig
from rl_rollout.errors import EngineStateError, RolloutConfigError, UnknownRolloutError
from rl_rollout.precision import with_dtype

NamedTensors = Iterator[tuple[str, Tensor]]


class BaseRollout(ABC):
    """A generation engine: token ids in, token ids and log-probs out, weights replaceable.

    A new engine implements `generate` and `load_weights`, and overrides `sleep`, `wake`, `close` and
    `open_session` where it can do better than the defaults.
    """

    data_parallel_rank: int = 0
    """Which shard of the rows this engine sees; part of derived seeds."""

    def __init__(self, config: RolloutConfig, *, pad_id: int) -> None:
        self.config = config
        self.pad_id = pad_id
        self._calls = 0
        self._has_weights = config.load_format != "dummy"
        self._awake = True
        self._queued: dict[str, GenerationRequest] = {}
        self._queued_count = 0

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Complete every request; answers in the order of the requests, log-probs of the sampled tokens
        in the space log_softmax(logits / T), renormalised under top-p and top-k."""

    @abstractmethod
    def load_weights(self, named_tensors: NamedTensors) -> None:
        """Replace the weights by a stream of full tensors under their Hugging Face names. Every cache
        computed from the old ones must be dropped. A tensor is only valid until the next is drawn."""

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response per row of `prompts`.

        `prompts.batch`: `input_ids attention_mask` [B, P] left-padded; `seeds` [B] optional.
        Sampling: a column `sampling`, else `meta_info["sampling"]`, else the config's training sampling.
        Returns `prompts responses input_ids attention_mask position_ids response_mask rollout_log_probs`,
        lengths and the column `finish_reason`; see `to_batch`. `meta_info["logprob_space"]` says which space.
        """
        samplings = row_samplings(prompts, self.config.sampling())
        rows = unpad_prompts(prompts)
        seeds = row_seeds(prompts) or self.derive_seeds(samplings)
        return self.answer(prompts, self.complete(rows, samplings, seeds))

    def answer(self, prompts: DataProto, completions: Sequence[Completion], version: int = -1) -> DataProto:
        """What `generate_sequences` returns; `version` as in `to_batch`."""
        result = to_batch(prompts, completions, self.config.response_length, self.pad_id, version)
        space = declare_space(prompts, self.config.sampling(), self.config.dtype)
        result.meta_info["logprob_space"] = space
        return result

    def complete(
        self, rows: Sequence[list[int]], samplings: Sequence[SamplingConfig], seeds: Sequence[int]
    ) -> list[Completion]:
        """Complete rows of token ids; rows without a prompt or without room come back empty."""
        self.check_ready()
        completions: list[Completion] = []
        requests: list[GenerationRequest] = []
        places: list[int] = []
        for place, (ids, sampling, seed) in enumerate(zip(rows, samplings, seeds, strict=True)):
            limit = self.token_limit(len(ids), sampling)
            completions.append(Completion(finish_reason="length" if ids else "empty"))
            if ids and limit > 0:
                places.append(place)
                requests.append(GenerationRequest(ids, sampling, usable_seed(seed), limit))
        for place, completion in zip(places, self.generate(requests) if requests else [], strict=True):
            completions[place] = completion
        return completions

    def token_limit(self, prompt_tokens: int, sampling: SamplingConfig) -> int:
        """How many tokens a row may still get."""
        wanted = sampling.max_tokens or self.config.response_length
        return min(wanted, self.config.response_length, self.config.model_len - prompt_tokens)

    def update_weights(self, named_tensors: NamedTensors) -> None:
        """Replace the weights; see `load_weights`."""
        self.load_weights(named_tensors)
        self._has_weights = True

    def load_adapter(self, tensors: Mapping[str, Tensor], peft_config: Mapping[str, Any]) -> None:
        """Use a LoRA adapter from the next request on, where the engine can hold one."""
        raise RolloutConfigError(
            f"{type(self).__name__} holds no adapters: set lora_rank=0 and they are merged into the weights"
        )

    def add_request(self, request: GenerationRequest) -> str:
        """Queue a request; `step` answers under the key returned. Engines that batch continuously override
        this and `step`; the default runs what is queued as one batch."""
        self._queued_count += 1
        key = str(self._queued_count)
        self._queued[key] = request
        return key

    def step(self) -> dict[str, Completion]:
        """Advance queued requests; what finished, by key."""
        queued, self._queued = self._queued, {}
        return dict(zip(queued, self.generate(list(queued.values())), strict=True)) if queued else {}

    def abort(self, keys: list[str]) -> dict[str, Completion]:
        """Forget queued requests. Those that are `interruptible` and were begun: what they have, by key."""
        for key in keys:
            self._queued.pop(key, None)
        return {}

    def sleep(self) -> None:
        """Give back what the platform can give back (KV cache, weights) while others train."""
        self._awake = False

    def wake(self, tag: str = "") -> None:
        """Take memory again: "weights" first, then "kv_cache", or "" for both."""
        if tag in ("", "kv_cache"):
            self._awake = True

    def close(self) -> None:
        """Free the engine. Closing twice is fine."""
        self._awake = False

    def check_ready(self) -> None:
        """Raise EngineStateError where generating would give garbage: asleep, closed, or without weights."""
        if not self._awake:
            raise EngineStateError("the engine is asleep or closed: call wake() before generating")
        if not self._has_weights:
            raise EngineStateError(
                "the engine was built with load_format='dummy' and no weights have arrived: "
                "call update_weights first, or set load_format='auto'"
            )

    def derive_seeds(self, samplings: Sequence[SamplingConfig]) -> list[int]:
        """Seeds from call, shard and row: equal on every rank of a tensor-parallel group."""
        self._calls += 1
        return [
            derive_seed(sampling.seed, self._calls, self.data_parallel_rank, row)
            for row, sampling in enumerate(samplings)
        ]


def declare_space(prompts: DataProto, default: SamplingConfig, dtype: str) -> dict[str, Any]:
    """The space of a batch's log-probs. Every shard of a batch says the same, one without rows too: where
    rows have samplings of their own, the values are -1."""
    temperature, top_p, top_k = -1.0, -1.0, -1
    if "sampling" not in prompts.non_tensor_batch:
        sampling = prompts.meta_info.get("sampling", default)
        temperature = sampling.logprob_temperature
        top_p, top_k = (1.0, -1) if sampling.greedy else (sampling.top_p, sampling.top_k)
    return {"temperature": temperature, "top_p": top_p, "top_k": top_k, "dtype": dtype}


RolloutFactory = Callable[[RolloutConfig, str, torch.device, Any], BaseRollout]
_REGISTRY: dict[str, RolloutFactory] = {}
# Our own engines stand above this module: named here, and imported when one of theirs is built.
_OWN_ENGINES = {"hf": "rl_rollout.engines.hf.rollout", "vllm": "rl_rollout.engines.vllm.rollout"}


def register_rollout(name: str) -> Callable[[RolloutFactory], RolloutFactory]:
    """Decorator: make `factory(config, model_path, device, tokenizer)` available as `rollout.name=name`."""

    def add(factory: RolloutFactory) -> RolloutFactory:
        _REGISTRY[name] = factory
        return factory

    return add


def registered_rollouts() -> list[str]:
    """Names that `build_rollout` accepts besides "auto"."""
    return sorted({*_REGISTRY, *_OWN_ENGINES})


def resolve_name(name: str) -> str:
    """ "auto" as the engine it stands for here; any other name unchanged."""
    if name != "auto":
        return name
    return "vllm" if importlib.util.find_spec("vllm") is not None else "hf"


def build_rollout(
    config: RolloutConfig, model_path: str, device: torch.device | str = "cpu", tokenizer: Any = None
) -> BaseRollout:
    """Build the engine `config.name` for the checkpoint folder `model_path`.

    Call it after the trainer's process group exists; with several ranks it is collective.
    Raises UnknownRolloutError, which lists what is registered, for a name that isn't.
    """
    name = resolve_name(config.name)
    if name not in _REGISTRY and name in _OWN_ENGINES:
        importlib.import_module(_OWN_ENGINES[name])
    if name not in _REGISTRY:
        raise UnknownRolloutError(
            f"rollout.name={name!r} is not built; available: {', '.join(registered_rollouts())} (or auto)"
        )
    where = torch.device(device)
    return _REGISTRY[name](with_dtype(config, where), model_path, where, tokenizer)
