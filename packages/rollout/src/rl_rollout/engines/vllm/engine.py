"""Build and tear down an in-process vLLM engine so that the trainer around it notices nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from rl_rollout.batch.draws import draw_tokens, row_uniforms
from rl_rollout.config import RolloutConfig
from rl_rollout.engine_env import check_engine_env
from rl_rollout.engines.vllm import private_api
from rl_rollout.engines.vllm.transfer import register_shm_backend
from rl_rollout.errors import EngineEnvironmentError, RolloutConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from vllm import LLM

logger = logging.getLogger(__name__)

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_CPU_BATCHED_TOKENS = 4096
_live_engines: list[int] = []  # tensor-parallel size of each engine alive in this process


@dataclass
class EngineHandle:
    """An engine and what creating it left to undo."""

    llm: LLM
    tensor_parallel_size: int
    owns_process_group: bool


def create_engine(
    config: RolloutConfig,
    model_path: str,
    model_config: PretrainedConfig,
    device: torch.device,
    with_tokenizer: bool,
) -> EngineHandle:
    """Create an engine for this rank; collective over the default process group where there is one.

    Raises EngineEnvironmentError when environment or process group came too late, RolloutConfigError
    when the ranks don't divide into tensor-parallel groups.
    """
    check_engine_env(device.type)
    world = _check_world(config)
    from vllm import LLM

    had_group = dist.is_initialized()
    shm_name = _agree_on_name() if world > 1 and device.type == "cpu" else ""
    arguments = engine_arguments(config, model_path, model_config, device, with_tokenizer)
    if world > 1:
        arguments |= _launcher_arguments(shm_name)
    with _preserved_process_state(), _rank_variables():
        llm = LLM(**arguments)
    private_api.disarm_finalizer(llm)
    if device.type == "cpu":
        private_api.draw_rows_together(llm, row_uniforms, draw_tokens)
        quick = llm.apply_model(private_api.use_cpu_norms)
        logger.info("%s RMS norms run in vLLM's kernel", quick)
    if shm_name:
        _unlink_shared_memory(shm_name)
    _live_engines.append(config.tensor_model_parallel_size)
    return EngineHandle(llm, config.tensor_model_parallel_size, dist.is_initialized() and not had_group)


def destroy_engine(handle: EngineHandle) -> None:
    """Shut the engine down; with the last one, vLLM's groups, and a process group that vLLM had made."""
    private_api.shut_down(handle.llm)
    _live_engines.remove(handle.tensor_parallel_size)
    if not _live_engines:
        private_api.destroy_groups(default_group=handle.owns_process_group)


def engine_arguments(
    config: RolloutConfig,
    model_path: str,
    model_config: PretrainedConfig,
    device: torch.device,
    with_tokenizer: bool,
) -> dict[str, Any]:
    """vLLM's constructor arguments for `config`."""
    arguments: dict[str, Any] = {
        "model": model_path,
        "dtype": config.dtype,
        "tensor_parallel_size": config.tensor_model_parallel_size,
        "trust_remote_code": config.trust_remote_code,
        "max_model_len": config.model_len,
        "max_num_seqs": config.max_num_seqs,
        "enforce_eager": config.enforce_eager,
        "enable_prefix_caching": config.enable_prefix_caching,
        "block_size": config.block_size,
        "load_format": config.load_format,
        "skip_tokenizer_init": not with_tokenizer,
        "logprobs_mode": "processed_logprobs",  # the default ignores temperature and truncation
        "seed": config.seed,
        "disable_log_stats": True,
    }
    if config.lora_rank:
        rank = next((r for r in _LORA_RANKS if r >= config.lora_rank), config.lora_rank)
        arguments |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank}
    if config.weight_transfer:
        register_shm_backend()
        arguments["weight_transfer_config"] = {"backend": config.weight_transfer}
    arguments |= _cpu_arguments(config, model_config) if device.type == "cpu" else _cuda_arguments(config)
    return arguments


def _cpu_arguments(config: RolloutConfig, model_config: PretrainedConfig) -> dict[str, Any]:
    wanted = config.max_num_batched_tokens or _CPU_BATCHED_TOKENS
    return {
        # a per-row seed and a chunked prompt kill the CPU engine: a prompt always goes in one piece
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(wanted, config.model_len),
        # left alone, the engine takes most of the machine's memory
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes or kv_cache_bytes(config, model_config),
    }


def _cuda_arguments(config: RolloutConfig) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enable_sleep_mode": config.free_cache_engine,
    }
    if config.kv_cache_memory_bytes:
        arguments["kv_cache_memory_bytes"] = config.kv_cache_memory_bytes
    if config.max_num_batched_tokens:
        arguments["max_num_batched_tokens"] = config.max_num_batched_tokens
    return arguments


def kv_cache_bytes(config: RolloutConfig, model_config: PretrainedConfig) -> int:
    """KV bytes per rank for `max_num_seqs` rows of full length, at most an eighth of the memory that is
    free now, at least two rows."""
    heads = model_config.num_attention_heads
    kv_heads = getattr(model_config, "num_key_value_heads", None) or heads
    head_dim = getattr(model_config, "head_dim", None) or model_config.hidden_size // heads
    item = torch.empty((), dtype=getattr(torch, config.dtype)).element_size()
    per_rank = -(-kv_heads // config.tensor_model_parallel_size)
    blocks = -(-config.model_len // config.block_size)
    row = 2 * model_config.num_hidden_layers * per_rank * head_dim * item * blocks * config.block_size
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(max(2 * row, min(config.max_num_seqs * row, free // 8)))


def _check_world(config: RolloutConfig) -> int:
    """The number of ranks, once it is sure that engine groups can be cut from them."""
    tp = config.tensor_model_parallel_size
    if not dist.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise EngineEnvironmentError(
                "WORLD_SIZE says there are several ranks but there is no process group: initialise the "
                "trainer's first, or vLLM makes a default group the trainer can't use"
            )
        world = 1
    else:
        world = dist.get_world_size()
    if world % tp:
        raise RolloutConfigError(f"tensor_model_parallel_size={tp} must divide the {world} rank(s)")
    if _live_engines and _live_engines[0] != tp:
        raise RolloutConfigError(
            f"tensor_model_parallel_size={tp}, but a live engine in this process has {_live_engines[0]}: "
            "vLLM keeps one set of groups per process; close the other engine first"
        )
    return world


def _agree_on_name() -> str:
    """A shared-memory name no other job has: vLLM's own is the same for every job and outlives a kill."""
    box = [f"rlrollout-{uuid.uuid4().hex[:16]}"]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _launcher_arguments(shm_name: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {"distributed_executor_backend": "external_launcher"}
    if shm_name:
        arguments["worker_cls"] = "rl_rollout.engines.vllm.cpu_worker.NamedMemoryCPUWorker"
        arguments["additional_config"] = {"rl_rollout_shm_name": shm_name}
    return arguments


def _unlink_shared_memory(name: str) -> None:
    """Take the names away once every rank has mapped the memory: a killed job then leaves nothing."""
    dist.barrier()
    for path in private_api.shared_memory_paths(name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def _preserved_process_state() -> Iterator[None]:
    """Undo what creating an engine does to its process: seeded global RNGs, a disabled set_num_threads."""
    set_num_threads = torch.set_num_threads
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads = set_num_threads
        np.random.set_state(numpy_state)
        random.setstate(python_state)


@contextlib.contextmanager
def _rank_variables() -> Iterator[None]:
    """RANK and LOCAL_RANK for vLLM's launcher where only the process group knows them."""
    missing: dict[str, str] = {}
    if dist.is_initialized():
        rank = str(dist.get_rank())
        missing = {k: rank for k in ("RANK", "LOCAL_RANK") if k not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
