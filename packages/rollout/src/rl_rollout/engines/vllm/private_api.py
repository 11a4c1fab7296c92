"""Every reach into what vLLM does not promise to keep: what to check for a new vLLM version.

The rest of the package uses vLLM's public side: `LLM` and the requests of its `LLMEngine`, `SamplingParams`,
`LoRARequest`, the weight-transfer base classes and factories, the options `worker_cls` and
`additional_config`. One class can't stand here, since it needs vLLM's CPU build to be imported:
`cpu_worker.NamedMemoryCPUWorker`, which derives `CPUWorker` and calls `name_shared_memory`.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from vllm import LLM

logger = logging.getLogger(__name__)


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
    """Call the workers' `reload_weights` with an iterator: it unpacks each layer, loads it and packs it.

    It keeps tensors until their layer is whole, while the stream goes on: where a stream may use memory
    again, on a CPU, it gets copies.
    """
    kept = ((name, t.clone() if t.device.type == "cpu" else t) for name, t in named_tensors)
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": kept})


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


Draw = Callable[[Tensor, "Tensor | None", "Tensor | None"], tuple[Tensor, Tensor]]
"""Logits [B, V], uniforms [B] or None, greedy rows [B] or None: tokens [B] and their log-probs [B]."""


def draw_rows_together(llm: LLM, uniforms: Callable[[Tensor, Tensor], Tensor], draw: Draw) -> None:
    """Replace `forward` of the model runner's `sampler`: seeds and positions [B] become one number each, and
    all rows are drawn at once.

    vLLM draws row after row, and noise for every token of the vocabulary. What our rows never ask for (more
    log-probs than the drawn token's, rows without a seed) still goes there, and all of it, with a warning,
    where this version keeps its parts otherwise.
    """
    for missing in llm.collective_rpc(_replace_sampler, args=(uniforms, draw)):
        if missing:
            logger.warning("vLLM draws row by row: this version has no %s where we look", ", ".join(missing))


def _replace_sampler(worker: Any, uniforms: Callable[[Tensor, Tensor], Tensor], draw: Draw) -> list[str]:
    """On one worker; the names of what isn't there, in which case nothing is replaced."""
    try:
        from vllm.v1.outputs import LogprobsTensors, SamplerOutput
        from vllm.v1.sample.metadata import SamplingMetadata
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        runner = worker.model_runner
        sampler, batch = runner.sampler, runner.input_batch
    except (ImportError, AttributeError) as error:
        return [str(error)]
    missing = [name for name in _METADATA if name not in SamplingMetadata.__dataclass_fields__]
    wanted = ((sampler, "apply_logits_processors"), (sampler, "apply_temperature"), (batch, _COUNTED))
    missing += [name for owner, name in wanted if not hasattr(owner, name)]
    if missing:
        return missing
    own = sampler.forward

    def forward(logits: Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        asked = sampling_metadata
        greedy = None if asked.temperature is None else asked.temperature < _GREEDY_BELOW
        drawn = list(range(len(logits))) if greedy is None else (~greedy).nonzero()[:, 0].tolist()
        seeded = asked.all_greedy or all(row in asked.generators for row in drawn)
        if args or kwargs or asked.max_num_logprobs != 0 or asked.logprob_token_ids or not seeded:
            return own(logits, sampling_metadata, *args, **kwargs)
        logits = sampler.apply_logits_processors(logits.float(), asked, False)
        numbers = None
        if not asked.all_greedy:
            if not bool((asked.temperature == 1).all()):
                logits = sampler.apply_temperature(logits, asked.temperature, asked.all_random)
            for processor in asked.logitsprocs.argmax_invariant:
                logits = processor.apply(logits)
            logits = apply_top_k_top_p(logits, asked.top_k, asked.top_p)
            numbers = uniforms(*_seeds_and_positions(asked.generators, runner.input_batch, len(logits)))
        tokens, log_probs = draw(logits, numbers, None if asked.all_random else greedy)
        ids = tokens.int()[:, None]
        ranks = torch.zeros_like(tokens)  # nobody asks how many tokens are likelier
        return SamplerOutput(ids, LogprobsTensors(ids, log_probs[:, None], ranks))

    sampler.forward = forward
    return []


_METADATA = (
    "temperature", "all_greedy", "all_random", "generators", "max_num_logprobs", "logprob_token_ids",
    "logitsprocs", "top_k", "top_p",
)  # fmt: skip
_COUNTED = "req_output_token_ids"
_GREEDY_BELOW = 1e-5  # what vLLM takes for a temperature of zero


def _seeds_and_positions(generators: Any, batch: Any, rows: int) -> tuple[Tensor, Tensor]:
    """Of each row [rows] int64: its request's seed, 0 where it has none, and how many tokens it has got. Both
    survive preemption: nothing is counted here."""
    seeds = [generators[row].initial_seed() if row in generators else 0 for row in range(rows)]
    answers = getattr(batch, _COUNTED)
    return torch.tensor(seeds), torch.tensor([len(answers[row]) for row in range(rows)])


def use_cpu_norms(model: nn.Module) -> int:
    """Let `RMSNorm` modules use `torch.ops._C.rms_norm` and `fused_add_rms_norm`, which vLLM's CPU build
    holds and leaves to GPUs: in their place run six passes of torch. Returns how many do.

    Each module is first tried on random rows: it keeps its own arithmetic where the kernel's is another.
    """
    try:
        from vllm.model_executor.layers.layernorm import RMSNorm
    except ImportError:
        return 0
    return sum(_use_cpu_norm(module) for module in model.modules() if type(module) is RMSNorm)


def _use_cpu_norm(module: Any) -> bool:
    kernels: Any = torch.ops._C
    own, epsilon = functools.partial(type(module).forward, module), module.variance_epsilon

    def forward(x: Tensor, residual: Tensor | None = None) -> Any:
        if not x.is_contiguous() or module.weight.dtype != x.dtype:
            return own(x) if residual is None else own(x, residual)
        if residual is None:
            out = torch.empty_like(x)
            kernels.rms_norm(out, x, module.weight, epsilon)
            return out
        kernels.fused_add_rms_norm(x, residual, module.weight, epsilon)  # into both, as on a GPU
        return x, residual

    if module.has_weight and module.variance_size_override is None and _agree(own, forward, module.weight):
        module.forward = forward
        return True
    return False


def _agree(own: Callable[..., Any], other: Callable[..., Any], weight: Tensor) -> bool:
    """Whether two norms are the same on random rows, with and without a residual, up to rounding."""
    rows = torch.randn(2, 3, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    try:
        answers = [(*norm(*rows.clone()), norm(rows[0])) for norm in (own, other)]
    except (AttributeError, RuntimeError, TypeError):  # no such kernel, or one that takes something else
        return False
    tolerance = 1e-5 if weight.dtype == torch.float32 else 2e-2
    return all(torch.allclose(a, b, rtol=tolerance, atol=0) for a, b in zip(*answers, strict=True))
