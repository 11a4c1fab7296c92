"""What workers share: a place among the ranks and an engine; and what those that train one share besides."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from rl_controller import Dispatch, Worker, register
from rl_workers.compute.ulysses import check_heads
from rl_workers.config import FSDPConfig, ModelConfig, OptimConfig
from rl_workers.engine.base import TrainEngine
from rl_workers.engine.layout import backend_for, resolve_device
from rl_workers.errors import CheckpointError, WorkerStateError
from rl_workers.fsdp.engine import FSDPEngine
from rl_workers.fsdp.host_memory import keep_freed_memory
from rl_workers.fsdp.mesh import FSDPLayout, build_layout
from rl_workers.model.building import Initialiser, build_on_meta
from rl_workers.model.heads import HeadedModel
from rl_workers.model.lora import add_adapters, with_adapters
from rl_workers.profiler import DistProfiler, ProfilerConfig

T = TypeVar("T")


class EngineWorker(Worker):
    """A worker whose process holds one or more training engines."""

    _layout: FSDPLayout

    def setup_device(self, device: str, mesh_name: str, fsdp_size: int = -1, sp_size: int = 1) -> FSDPLayout:
        """Join the process group and tell the controller where this rank stands on the mesh ``mesh_name``."""
        found = resolve_device(device, self.local_rank)
        if found.type == "cuda":
            torch.cuda.set_device(found)
        else:
            keep_freed_memory()
        self.init_process_group(backend_for(found))
        layout = self._layout = build_layout(found, fsdp_size, sp_size)
        self._register_dispatch_collect_info(mesh_name, layout.dp_rank, layout.is_collect)
        return layout

    def build_engine(
        self,
        head: type[HeadedModel],
        auto_class: Any,
        model: ModelConfig,
        fsdp: FSDPConfig,
        *,
        new: Initialiser,
        optim: OptimConfig | None = None,
        grad_clip: float = 0.0,
        seed: int = 0,
        **overrides: Any,
    ) -> TrainEngine:
        """An engine of :meth:`setup_device`'s layout, its model filled; collective over the layout's ranks.

        Args:
            head: what answers for the model that ``auto_class`` builds from ``model.path``.
            new: initial values of parameters that the folder does not hold.
            optim: None for a model that is only evaluated, which gets no adapters either.
            seed: of the adapters.
            overrides: changes to the model's own configuration.
        """
        lm = build_on_meta(auto_class, model, getattr(torch, fsdp.model_dtype), **overrides)
        check_heads(lm.config, self._layout.sp_size)
        adapted = optim is not None and model.lora_rank > 0
        adapters = add_adapters(lm, model) if adapted else None
        return FSDPEngine(
            head(lm, self._layout.sp_group),
            model.path,
            self._layout,
            fsdp,
            new=with_adapters(new, seed) if adapted else new,
            optim=optim,
            grad_clip=grad_clip,
            checkpoint_layers=model.enable_gradient_checkpointing and optim is not None,
            peft_config=adapters,
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_profile(self, config: ProfilerConfig, step: int) -> bool:
        """Profile this process until :meth:`stop_profile`, if ``config`` chooses the step and this rank."""
        return DistProfiler.start(config, self.rank, step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def stop_profile(self) -> str:
        """Write the trace; its path, or "" where nothing was profiled."""
        return DistProfiler.stop()

    def need(self, held: T | None, what: str) -> T:
        """What is held, an engine for one, or an error that says what is missing."""
        if held is None:
            raise WorkerStateError(
                f"{type(self).__name__} has no {what}: call init_model, in a role that has one"
            )
        return held


class TrainedWorker(EngineWorker):
    """A worker that trains one model, and saves, loads and exports it."""

    def trained(self) -> TrainEngine:
        """The engine of that model, or an error that says what is missing."""
        raise NotImplementedError

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self, path: str, global_step: int = 0, with_optimizer: bool = True, blocking: bool = True
    ) -> None:
        """Save the model to a folder; see :meth:`rl_workers.TrainEngine.save`."""
        self.trained().save(path, global_step, with_optimizer=with_optimizer, blocking=blocking)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait_checkpoint(self) -> None:
        """Wait for a save in the background."""
        self.trained().wait()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def checkpoint_problem(self, path: str) -> str:
        """What is wrong with a saved folder's files, or ""; see :meth:`rl_workers.TrainEngine.check`."""
        try:
            self.trained().check(path)
        except CheckpointError as error:
            return str(error)
        return ""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: str, with_optimizer: bool = True) -> int:
        """Load the model from a folder that any number of ranks saved; returns the global step."""
        return self.trained().load(path, with_optimizer=with_optimizer)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_hf(self, path: str, dtype: str = "float32") -> None:
        """Write the model, adapters merged, as a Hugging Face model of its class, with its tokenizer."""
        self.trained().export(path, getattr(torch, dtype))
