"""Typed options of a rollout: how to sample, and how to build the engine. Flat fields, no unions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rl_rollout.errors import RolloutConfigError
from rl_rollout.precision import AUTO, DTYPES

LOAD_FORMATS = ("auto", "dummy")


def _require(ok: bool, name: str, value: object, rule: str) -> None:
    if not ok:
        raise RolloutConfigError(f"{name}={value!r}: {rule}")


@dataclass
class SamplingConfig:
    """How one row is sampled. `temperature=0` or `do_sample=False` is greedy."""

    temperature: float = 1.0
    """Divides the logits; also the temperature of the returned log-probs (1 where greedy)."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 or 0 keeps all."""
    max_tokens: int = 0
    """Most new tokens per row; 0 means the rollout's `response_length`."""
    stop: list[str] = field(default_factory=list)
    """Strings that end a response; they stay part of it."""
    seed: int = 0
    """Base of the per-row seeds where the batch brings none."""
    do_sample: bool = True
    """False picks the most likely token (validation)."""
    ignore_eos: bool = False
    """True generates up to `max_tokens` whatever the model says (benchmarks)."""

    def __post_init__(self) -> None:
        _require(0 <= self.temperature < math.inf, "temperature", self.temperature, "must be at least 0")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "must lie in (0, 1]")
        _require(self.top_k >= -1, "top_k", self.top_k, "must be positive, or -1 to keep every token")
        _require(self.max_tokens >= 0, "max_tokens", self.max_tokens, "must be positive, or 0 for the limit")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return not self.do_sample or self.temperature == 0

    @property
    def logprob_temperature(self) -> float:
        """Temperature of the space the returned log-probs live in."""
        return 1.0 if self.greedy else self.temperature


def greedy_sampling() -> SamplingConfig:
    """Validation's default: greedy."""
    return SamplingConfig(do_sample=False)


@dataclass
class RolloutConfig:
    """What `build_rollout` builds, and the training sampling it uses by default."""

    name: str = "auto"
    """Engine: "vllm", "hf", a registered name, or "auto" (vllm where installed, else hf)."""
    n: int = 1
    """Samples per prompt; the driver repeats rows, engines never do."""
    temperature: float = 1.0
    """Training sampling, see `SamplingConfig`."""
    top_p: float = 1.0
    """Training sampling, see `SamplingConfig`."""
    top_k: int = -1
    """Training sampling, see `SamplingConfig`."""
    do_sample: bool = True
    """Training sampling, see `SamplingConfig`."""
    ignore_eos: bool = False
    """Training sampling, see `SamplingConfig`."""
    seed: int = 0
    """Base of the sampling seeds where the batch brings none."""
    prompt_length: int = 512
    """Longest prompt in tokens."""
    response_length: int = 512
    """Width R of the responses."""
    dtype: str = AUTO
    """Precision of the engine: float32, bfloat16, float16, or auto (bfloat16 where the device has it)."""
    tensor_model_parallel_size: int = 1
    """Consecutive ranks that share one model; each holds an engine and all run the same requests."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory for weights and KV cache (CUDA only)."""
    kv_cache_memory_bytes: int = 0
    """KV cache per rank; 0 sizes it from the lengths on CPU and from gpu_memory_utilization on CUDA."""
    max_num_seqs: int = 256
    """Most rows in flight at once in one engine."""
    max_num_batched_tokens: int = 0
    """Most tokens in one forward; 0 chooses (never less than max_model_len on CPU)."""
    max_model_len: int = 0
    """Longest prompt plus response; 0 means prompt_length + response_length."""
    block_size: int = 32
    """Tokens per KV block: the grain of prefix sharing."""
    enforce_eager: bool = True
    """Don't capture graphs: quicker start-up."""
    enable_prefix_caching: bool = True
    """Compute the prompt of a group of samples once."""
    load_format: str = "dummy"
    """"auto" reads the checkpoint; "dummy" waits for the first weight update."""
    free_cache_engine: bool = True
    """Sleep while training: give back KV cache and weights where the platform can."""
    lora_rank: int = 0
    """Largest adapter rank the engine must hold; 0 builds an engine without LoRA."""
    weight_transfer: str = ""
    """vLLM weight-transfer backend for trainers in other processes: "", "shm", "ipc", "nccl", ..."""
    hf_batch_size: int = 16
    """Rows per forward in the transformers engine; fixed so that a row's bits don't depend on its batch."""
    trust_remote_code: bool = False
    """Let a checkpoint bring its own model code."""
    agent_loop: str = ""
    """What happens in a row: "" one generation, "tool" turns with a calculator and Python, or
    `package.module:function` or `path/to/file.py:function`, called with (config, tokenizer) to give an
    `AgentLoop`."""
    max_turns: int = 4
    """Most turns of the policy in a tool loop."""
    val: SamplingConfig = field(default_factory=greedy_sampling)
    """Sampling of validation."""

    def __post_init__(self) -> None:
        for name in ("n", "prompt_length", "response_length", "tensor_model_parallel_size"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("max_num_seqs", "block_size", "hf_batch_size", "max_turns"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("kv_cache_memory_bytes", "max_num_batched_tokens", "max_model_len", "lora_rank"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "must be positive, or 0 to choose")
        kinds = (AUTO, *DTYPES)
        _require(self.dtype in kinds, "dtype", self.dtype, f"must be one of {', '.join(kinds)}")
        _require(
            self.load_format in LOAD_FORMATS,
            "load_format",
            self.load_format,
            f"must be one of {', '.join(LOAD_FORMATS)}",
        )
        _require(
            0 < self.gpu_memory_utilization <= 1,
            "gpu_memory_utilization",
            self.gpu_memory_utilization,
            "must lie in (0, 1]",
        )
        self.sampling()  # a bad temperature is refused here, not at the first batch

    def sampling(self) -> SamplingConfig:
        """The sampling used in training."""
        return SamplingConfig(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            do_sample=self.do_sample,
            ignore_eos=self.ignore_eos,
            seed=self.seed,
        )

    @property
    def model_len(self) -> int:
        """Longest sequence the engine must hold."""
        return self.max_model_len or self.prompt_length + self.response_length
