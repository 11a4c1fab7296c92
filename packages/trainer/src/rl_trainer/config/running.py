"""How a run goes on: steps, processes, what it keeps, and how far generation may run ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .rules import at_least, check, one_of, positive


@dataclass
class TrainerConfig:
    """How long, where, and what is kept."""

    total_epochs: int = 1
    """Passes over the training prompts, where `total_training_steps` does not say otherwise."""
    total_training_steps: int = -1
    """Steps to train; -1: as many as `total_epochs` gives."""
    nnodes: int = 1
    """Nodes of the cluster that hold workers."""
    n_workers_per_node: int = 0
    """Worker processes per node; 0: one for each GPU, or on CPU one for each core up to two."""
    n_gpus_per_node: int = 0
    """The name by which `n_workers_per_node` is known on CUDA; means the same."""
    n_rollout_workers_per_node: int = 0
    """Processes per node that only generate, beside those that train; 0: the training processes generate."""
    mode: str = "sync"
    """`sync`: batch by batch, `staleness` of them ahead; `async`: prompt by prompt, see `async_training`."""
    staleness: int = 0
    """Batches that are generated ahead while earlier ones train (needs rollout workers); 0: synchronous."""
    device: str = "auto"
    """`auto` (CUDA where there is one), `cpu` or `cuda`."""
    ray_address: str = ""
    """Cluster to join (`auto`: this machine's); empty: `RAY_ADDRESS`, else start one on this machine."""
    seed: int = 0
    """Decides the order of prompts and, with step and row, every sample."""
    project_name: str = "rl"
    """Name of the project in trackers."""
    experiment_name: str = "run"
    """Name of the run in trackers."""
    default_local_dir: str = "runs/run"
    """The run's folder: metrics, configuration, samples, checkpoints, exported model, logs."""
    logger: list[str] = field(default_factory=list)
    """Trackers beside `metrics.jsonl`: `tensorboard`, `wandb`."""
    val_before_train: bool = True
    """Validate once before the first step."""
    val_n: int = 1
    """Answers per validation prompt, sampled as `actor_rollout_ref.rollout.val` says, beside a greedy one."""
    test_freq: int = -1
    """Validate every so many steps; -1: only at the end."""
    save_freq: int = -1
    """Save a checkpoint every so many steps; -1: only at the end."""
    max_ckpt_to_keep: int = 2
    """Checkpoints kept; older ones are deleted once a newer one is complete."""
    resume_mode: str = "auto"
    """`auto`: go on from the newest sound checkpoint of the run folder; `disable`: an error if there is one;
    the folder of a step (`.../global_step_<n>`): go on from that one, whatever differs."""
    balance_batch: bool = True
    """Give every worker about the same number of tokens, where prompts allow it."""
    backend: str = "ray"
    """`ray`, or `local`: everything in this one process, so that a breakpoint stops anywhere."""
    report: bool = True
    """Write `report.html` at the end (needs plotly)."""
    critic_warmup: int = 0
    """Steps in which only the critic is trained."""
    export_at_end: bool = True
    """Write the trained actor as a Hugging Face model to `<run>/export`."""
    timeout_s: float = 3600.0
    """Longest wait for any one call to the workers; the error says which call it was."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work."""
        one_of(f"{prefix}.mode", self.mode, ("sync", "async"))
        if not (Path(self.resume_mode) / "trainer.json").is_file():
            one_of(f"{prefix}.resume_mode", self.resume_mode, ("auto", "disable", "the folder of a step"))
        one_of(f"{prefix}.backend", self.backend, ("ray", "local"))
        one_of(f"{prefix}.device", self.device, ("auto", "cpu", "cuda"))
        for name in ("max_ckpt_to_keep", "timeout_s", "total_epochs", "nnodes", "val_n"):
            positive(f"{prefix}.{name}", getattr(self, name))
        counts = ("n_workers_per_node", "n_gpus_per_node", "n_rollout_workers_per_node", "staleness", "seed")
        for name in (*counts, "critic_warmup"):
            at_least(f"{prefix}.{name}", getattr(self, name), 0)
        for name in ("total_training_steps", "test_freq", "save_freq"):
            at_least(f"{prefix}.{name}", getattr(self, name), -1)
        check(bool(self.default_local_dir), f"{prefix}.default_local_dir", "", "name the run's folder")


@dataclass
class AsyncTrainingConfig:
    """How far generation and training may drift apart, with `trainer.mode=async`."""

    staleness: int = 1
    """Most versions between the oldest token that is trained on and the policy; 0: as synchronous."""
    partial_rollout: bool = True
    """Rows under way go on with new weights; false: these wait until the rows are done."""
    drop_stale: bool = True
    """Drop, count and sample anew a prompt's rows that are older than `staleness`; false: train on them."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work."""
        at_least(f"{prefix}.staleness", self.staleness, 0)
