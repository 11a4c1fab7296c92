"""Generation with vLLM, the engine living inside the trainer's process."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from rl_rollout.base import BaseRollout, NamedTensors, register_rollout
from rl_rollout.batch.generation import Completion, GenerationRequest
from rl_rollout.batch.special_tokens import eos_token_ids, pad_token_id
from rl_rollout.config import RolloutConfig
from rl_rollout.engines.vllm.engine import EngineHandle, create_engine, destroy_engine
from rl_rollout.engines.vllm.weights import reload_engine, settle_weights
from rl_rollout.errors import EngineStateError, RolloutConfigError, RolloutDataError
from rl_rollout.precision import with_dtype

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

logger = logging.getLogger(__name__)


class vLLMRollout(BaseRollout):  # noqa: N801 - the name users know
    """One engine per rank; ranks of a tensor-parallel group get the same rows and answer alike (SPMD).

    Every row has its own seed, so a row's tokens depend on nothing but the weights, its prompt and its
    seed, on every rank and in any batch.
    """

    def __init__(
        self, config: RolloutConfig, model_path: str, device: torch.device, tokenizer: Any = None
    ) -> None:
        config = with_dtype(config, device)
        model_config = AutoConfig.from_pretrained(model_path, trust_remote_code=config.trust_remote_code)
        self.eos_ids = eos_token_ids(model_path, model_config, tokenizer)
        super().__init__(config, pad_id=pad_token_id(self.eos_ids, tokenizer))
        self._with_tokenizer = tokenizer is not None
        self._handle: EngineHandle | None = create_engine(
            config, model_path, model_config, device, self._with_tokenizer
        )
        if dist.is_initialized():
            self.data_parallel_rank = dist.get_rank() // config.tensor_model_parallel_size
        self._requests = 0
        self._begun: dict[str, Completion] = {}  # what interruptible requests have so far
        self._adapter: LoRARequest | None = None
        self._adapter_versions = 0

    @property
    def llm(self) -> LLM:
        """The engine. Raises EngineStateError once closed."""
        if self._handle is None:
            raise EngineStateError("the engine is closed")
        return self._handle.llm

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See `BaseRollout.generate`."""
        keys: list[str] = []
        done: dict[str, Completion] = {}
        try:
            for request in requests:
                keys.append(self.add_request(request))
            while len(done) < len(keys):
                done.update(self.step())
        except BaseException:
            self.abort(keys)  # a failed call must not haunt the next one
            raise
        return [done[key] for key in keys]

    def add_request(self, request: GenerationRequest) -> str:
        """Queue a request; `step` answers under the key returned."""
        self._requests += 1
        key = str(self._requests)
        if request.interruptible:
            self._begun[key] = Completion()
        self.llm.llm_engine.add_request(
            key,
            {"prompt_token_ids": request.prompt_ids},
            self._sampling_params(request),
            lora_request=self._adapter,
        )
        return key

    def step(self) -> dict[str, Completion]:
        """One forward over what is queued; the requests it finished."""
        done: dict[str, Completion] = {}
        for output in self.llm.llm_engine.step():
            key, part = output.request_id, _completion(output)
            known = self._begun.get(key)
            if known is not None:  # the output holds what is new
                known.token_ids += part.token_ids
                known.log_probs += part.log_probs
                known.finish_reason = part.finish_reason
            if output.finished:
                done[key] = known or part
                self._begun.pop(key, None)
        return done

    def abort(self, keys: list[str]) -> dict[str, Completion]:
        """See `BaseRollout.abort`."""
        self.llm.llm_engine.abort_request(keys)
        begun = {key: self._begun.pop(key) for key in keys if key in self._begun}
        return {key: replace(part, finish_reason="abort") for key, part in begun.items()}

    def _sampling_params(self, request: GenerationRequest) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        if sampling.stop and not self._with_tokenizer:
            raise RolloutConfigError("stop strings need a tokenizer: pass one to build_rollout")
        return SamplingParams(
            max_tokens=request.max_tokens,
            temperature=0.0 if sampling.greedy else sampling.temperature,
            top_p=1.0 if sampling.greedy else sampling.top_p,
            top_k=-1 if sampling.greedy or sampling.top_k <= 0 else sampling.top_k,
            seed=request.seed,  # without one, ranks draw from their process's RNG and drift apart
            stop=sampling.stop or None,
            include_stop_str_in_output=True,
            stop_token_ids=[] if sampling.ignore_eos else self.eos_ids,
            ignore_eos=sampling.ignore_eos,
            logprobs=0,  # the sampled token's only
            flat_logprobs=True,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.DELTA if request.interruptible else RequestOutputKind.FINAL_ONLY,
        )

    def load_weights(self, named_tensors: NamedTensors) -> None:
        """See `BaseRollout.load_weights`; with tensor parallelism every rank gets the full tensors."""
        reload_engine(self.llm, named_tensors)

    def load_adapter(self, tensors: Mapping[str, Tensor], peft_config: Mapping[str, Any]) -> None:
        """Use a LoRA adapter (peft's names and config) from the next request on, instead of the last one.

        Every version gets a new name and folder: the prefix cache is keyed by them.
        """
        if not self.config.lora_rank:
            raise RolloutConfigError("lora_rank=0: the engine was built without LoRA; set it to the rank")
        from vllm.lora.request import LoRARequest

        self._adapter_versions += 1
        version = self._adapter_versions
        folder = Path(tempfile.mkdtemp(prefix="rl-rollout-adapter-"))
        try:
            save_file(
                {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
                folder / "adapter_model.safetensors",
            )
            (folder / "adapter_config.json").write_text(json.dumps(dict(peft_config)))
            request = LoRARequest(f"adapter-{version}", version, str(folder))
            if self._adapter is not None:
                self.llm.llm_engine.remove_lora(self._adapter.lora_int_id)
            self.llm.llm_engine.add_lora(request)
            self._adapter = request
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sleep(self) -> None:
        """Give KV cache and weights back where the platform can, unless `free_cache_engine` is off.

        Weights are discarded, not saved (a push follows), except those a LoRA adapter builds on.
        """
        if not self.config.free_cache_engine or not self._awake:
            return
        keep_weights = self.config.lora_rank > 0
        self.llm.sleep(level=1 if keep_weights else 2)
        self._has_weights = keep_weights and self._has_weights
        super().sleep()

    def wake(self, tag: str = "") -> None:
        """See `BaseRollout.wake`."""
        if self._awake:
            return
        self.llm.wake_up(tags=[tag] if tag else None)
        super().wake(tag)

    def weight_sync(self, step: str, payload: dict[str, Any]) -> None:
        """One step ("init", "start", "update", "finish") of a weight update driven from another process;
        see `transfer`. The config's `weight_transfer` names the backend."""
        if step == "init":
            self.llm.init_weight_transfer_engine(payload)
        elif step == "start":
            self.llm.start_weight_update()
        elif step == "update":
            self.llm.update_weights(payload)
        elif step == "finish":
            self.llm.finish_weight_update(payload.get("weight_version"))
            settle_weights(self.llm)
            self._has_weights = True
        else:
            raise RolloutDataError(f"step={step!r}: must be init, start, update or finish")

    def close(self) -> None:
        """Free the engine and what it made in this process."""
        super().close()
        if self._handle is not None:
            destroy_engine(self._handle)
            self._handle = None


def _completion(output: Any) -> Completion:
    answer = output.outputs[0]
    token_ids = list(answer.token_ids)
    return Completion(token_ids, list(answer.logprobs.logprobs), answer.finish_reason or "abort")


@register_rollout("vllm")
def build_vllm_rollout(
    config: RolloutConfig, model_path: str, device: torch.device, tokenizer: Any
) -> BaseRollout:
    """Factory of `rollout.name=vllm`."""
    return vLLMRollout(config, model_path, device, tokenizer)
