"""Every reach into what vLLM does not promise to keep: what to check for a new vLLM version.

The rest of the package uses vLLM's public side: `LLM` and the requests of its `LLMEngine`, `SamplingParams`,
`LoRARequest`, the weight-transfer base classes and factories, the options `worker_cls` and
`additional_config`. One class can't stand here, since it needs vLLM's CPU build to be imported:
`cpu_worker.NamedMemoryCPUWorker`, which derives `CPUWorker` and calls `name_shared_memory`.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from vllm import LLM


def disarm_finalizer(llm: LLM) -> None:
    """Detach the engine client's `_finalizer`: an engine that is merely dropped would shut down by itself,
    and take the trainer's process group with it."""
    client: Any = llm.llm_engine.engine_core
    client._finalizer.detach()


def shut_down(llm: LLM) -> None:
    """Call `shutdown` of the engine core inside the client; the client's own does nothing once its
    finalizer is detached. The process groups stay."""
    client: Any = llm.llm_engine.engine_core
    with process_groups_kept():
        client.engine_core.shutdown()


@contextlib.contextmanager
def process_groups_kept() -> Iterator[None]:
    """Replace `cleanup_dist_env_and_memory` in the module of the engine core while this lasts: it destroys
    all process groups, the trainer's too."""
    from vllm.v1.engine import core

    module: Any = core
    original = module.cleanup_dist_env_and_memory
    module.cleanup_dist_env_and_memory = _keep
    try:
        yield
    finally:
        module.cleanup_dist_env_and_memory = original


def _keep(*args: Any, **kwargs: Any) -> None:
    """Stands for a clean-up that is not to happen."""


def destroy_groups(default_group: bool) -> None:
    """Destroy the groups in `parallel_state`'s globals, which outlive their engine; with `default_group`
    torch's default group as well, for where vLLM had made it."""
    from vllm.distributed import parallel_state

    groups: Any = parallel_state
    groups.destroy_model_parallel()
    if default_group:
        groups.destroy_distributed_environment()


def name_shared_memory(worker: Any, name: str) -> None:
    """Set a CPU worker's `distributed_init_method`, whose last part names the tensor-parallel group's shared
    memory in `init_device`; where a process group exists already it serves nothing else."""
    worker.distributed_init_method = f"file:///{name}"


def shared_memory_paths(name: str) -> list[str]:
    """The files of shared memory that `name_shared_memory` named: vLLM puts more around the name."""
    return glob.glob(f"/dev/shm/*{name}*")


def reload_layers(llm: LLM, named_tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Call the workers' `reload_weights` with an iterator: it unpacks each layer, loads it and packs it."""
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": named_tensors})


def begin_layerwise_reload(model: nn.Module) -> None:
    """The first half of what `reload_weights` does, for tensors that come in pieces: unpack the layers so
    that they can load a checkpoint's tensors."""
    from vllm.model_executor.model_loader import reload

    steps: Any = reload
    steps.initialize_layerwise_reload(model)


def end_layerwise_reload(model: nn.Module, model_config: Any) -> None:
    """The second half: pack the layers again."""
    from vllm.model_executor.model_loader import reload

    steps: Any = reload
    steps.finalize_layerwise_reload(model, model_config)


def repack_output_heads(model: nn.Module) -> None:
    """Call `process_weights_after_loading` of each `ParallelLMHead`'s `quant_method`.

    A head tied to the embedding loads nothing of its own, so vLLM never repacks it after a reload: it
    would keep multiplying by the old matrix, silently.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            method: Any = module.quant_method
            method.process_weights_after_loading(module)
