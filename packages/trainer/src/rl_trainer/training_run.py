"""Everything around the steps of a training run: workers, validation, trackers, checkpoints, the result."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rl_algos import AdaptiveKLController, FixedKLController
from rl_controller import LocalWorkerGroup, RayWorkerGroup, WorkerGroup
from rl_protocol import DataProto, DataProtoFuture, LocalStore, RayStore, transfer_count
from rl_rollout import SamplingConfig, greedy_sampling

from .checkpoint import CheckpointStore, read_state
from .config import PPOConfig
from .config_loading import to_yaml
from .dataset import PromptDataset, collate
from .errors import CheckpointError, TrainingError
from .in_flight import Generation, InFlight
from .metrics import Metrics, data_metrics, reduce_metrics, timed
from .plan import total_training_steps
from .prompt_stream import PromptStream
from .report import write_report
from .reward import RewardResult
from .reward_worker import RewardWorker
from .roles import ResourcePoolManager, Role
from .seeds import row_seeds
from .sources import Row
from .step_batch import StepBatch, tensors_of
from .tracking import Tracking
from .validation import headline, sample_rows, validation_metrics, write_samples
from .versions import versions
from .worker_groups import spawn_groups

logger = logging.getLogger(__name__)

Event = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class FitResult:
    """How a run went.

    Attributes:
        steps: training steps done.
        val_before: validation score before the first step; NaN where there was none.
        val_after: the newest validation score.
        training_seconds: time in training steps; validation and saving left out.
        export: folder of the exported model, or empty.
        metrics: of the last step.
    """

    steps: int
    val_before: float
    val_after: float
    training_seconds: float
    export: str
    metrics: Metrics


class TrainingRun:
    """State of a run and what is done with it between steps; `RayPPOTrainer` adds the algorithm.

    See `RayPPOTrainer` for the arguments.
    """

    actor_rollout_wg: WorkerGroup
    rule_reward_wg: WorkerGroup
    rollout_wg: WorkerGroup
    ref_policy_wg: WorkerGroup
    critic_wg: WorkerGroup | None
    rm_wg: WorkerGroup | None

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        role_worker_mapping: Mapping[Role, type],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[WorkerGroup] = RayWorkerGroup,
        processor: object | None = None,
        reward_fn: Callable[[DataProto], RewardResult] | None = None,
        val_reward_fn: Callable[[DataProto], RewardResult] | None = None,
        train_dataset: PromptDataset | None = None,
        val_dataset: PromptDataset | None = None,
        collate_fn: Callable[[Sequence[Row]], dict[str, Any]] | None = None,
        train_sampler: PromptStream | None = None,
        progress: Callable[[Event], None] = lambda event: None,
    ) -> None:
        if reward_fn is None or train_dataset is None:
            raise TrainingError("RayPPOTrainer needs reward_fn and train_dataset")
        trainer = config.trainer
        self.config, self.tokenizer, self.processor = config, tokenizer, processor
        self.role_worker_mapping = {**role_worker_mapping, Role.RuleReward: RewardWorker}
        self.resource_pool_manager = resource_pool_manager
        self.ray_worker_group_cls, self.progress = ray_worker_group_cls, progress
        self.store = RayStore() if issubclass(ray_worker_group_cls, RayWorkerGroup) else LocalStore()
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn or reward_fn
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.collate_fn = collate_fn or self._collate
        self.stream = train_sampler or PromptStream(len(train_dataset), trainer.seed, config.data.shuffle)
        self.total_steps = total_training_steps(config, len(train_dataset))
        self.kl_ctrl = kl_controller(config)
        self.run = Path(trainer.default_local_dir)
        self.checkpoints = CheckpointStore(self.run / "checkpoints", trainer.max_ckpt_to_keep)
        self.tracking: Tracking | None = None
        self.in_flight = InFlight(trainer.staleness, self.start)
        # Steps done, batches drawn, steps that changed the policy: in flight or in warm-up they differ.
        self.global_step, self.drawn, self.version = 0, 0, 0
        self.training_seconds = 0.0
        self.metrics: Metrics = {}
        self.validations: dict[int, float] = {}
        self.started: list[WorkerGroup] = []

    def init_workers(self) -> None:
        """Create the pools, one fused worker class and group per pool, and load the models."""
        policy = Role.ActorRollout if Role.ActorRollout in self.role_worker_mapping else Role.Actor
        # Rewards are computed where the rows are trained on: engines of their own may be busy sampling.
        pools = self.resource_pool_manager.mapping
        pools.setdefault(Role.RuleReward, pools[policy])
        groups = spawn_groups(
            self.config,
            self.role_worker_mapping,
            self.resource_pool_manager,
            self.ray_worker_group_cls,
            self.total_steps,
            self.started,
            reward_fns=(self.reward_fn, self.val_reward_fn),
        )
        # An engine sizes its cache by the memory that is left, so the policy comes last.
        for role in sorted(groups, key=lambda role: role in (Role.ActorRollout, Role.Rollout)):
            if role is not Role.RuleReward:
                self.progress({"kind": "stage", "text": f"loading the {role.value} model"})
            groups[role].init_model()
        self.actor_rollout_wg, self.rule_reward_wg = groups[policy], groups[Role.RuleReward]
        self.rollout_wg = groups.get(Role.Rollout, self.actor_rollout_wg)
        # With adapters the policy plays its own reference.
        self.ref_policy_wg = groups.get(Role.RefPolicy, self.actor_rollout_wg)
        self.critic_wg, self.rm_wg = groups.get(Role.Critic), groups.get(Role.RewardModel)

    def shutdown(self) -> None:
        """End the workers and what they started, and give their pools back to the cluster."""
        if isinstance(getattr(self, "rule_reward_wg", None), LocalWorkerGroup):
            self.rule_reward_wg.close()  # elsewhere the reward processes end with the workers
        for group in self.started:
            group.shutdown()
        for pool in self.resource_pool_manager.resource_pool_dict.values():
            pool.release()

    # ---- prompts and samples -------------------------------------------------------------------------

    def _collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        width = max(data.longest for data in (self.train_dataset, self.val_dataset) if data is not None)
        return collate(rows, next((i for i in ids if i is not None), 0), width)

    def prompts_of(self, rows: Sequence[Row], names: Sequence[str]) -> DataProto:
        """Rows of a dataset as prompts, one row each, with a `uid`."""
        return DataProto.from_single_dict({**self.collate_fn(rows), "uid": np.array(names, dtype=object)})

    def start(
        self, prompts: DataProto, samplings: Sequence[SamplingConfig] = (), step: int | str = ""
    ) -> Generation:
        """Begin to generate responses, each with a seed of its own.

        Args:
            prompts: one row each.
            samplings: of each response of a prompt; empty: `rollout.n` as in training.
            step: what seeds derive from beside the row; empty: the batches drawn.
        """
        policy = self.config.actor_rollout_ref.rollout
        n = len(samplings) or policy.n
        # A prompt leaves the driver once; workers repeat it. Only agent loops read its object columns.
        sent = prompts.select(None, None if policy.agent_loop else [], [])
        repeated = DataProtoFuture.from_data(sent, self.store).repeat(n)
        uids = np.repeat(prompts.non_tensor_batch["uid"], n)
        own = DataProto.from_dict(
            {"seeds": row_seeds(self.config.trainer.seed, step or self.drawn, list(uids))},
            {"sampling": [*samplings] * len(prompts)} if samplings else {},
        )
        remote = self.rollout_wg.submit("generate_sequences", repeated.union(own))
        return Generation(prompts, remote, self.version)

    def read(self, generation: Generation) -> StepBatch:
        """Wait for a batch; its rows stay where they are."""
        remote, prompts = generation.remote, generation.prompts
        of_ranks: dict[str, list[float]] = {}
        for part in remote.meta_info.get("metrics", []):
            for key, value in part.items():
                of_ranks.setdefault(key, []).append(value)
        self.metrics |= reduce_metrics(of_ranks)
        n = len(remote) // len(prompts)
        objects = prompts.select([], None, [])
        with_objects = remote.union(DataProtoFuture.from_data(objects, self.store).repeat(n))
        lengths = tensors_of(prompts)["attention_mask"].sum(1).repeat_interleave(n)
        batch = StepBatch(with_objects, objects.repeat(n), prompts, {"prompt_lengths": lengths})
        batch.fetch("response_lengths", "num_actions")
        return batch

    def sample(
        self, prompts: DataProto, samplings: Sequence[SamplingConfig], step: int | str = ""
    ) -> StepBatch:
        """Generate now; see `start`."""
        return self.read(self.start(prompts, samplings, step))

    def score(self, batch: StepBatch, validation: bool = False) -> RewardResult:
        """What the rule reward says of each row, computed by the workers."""
        columns = ["responses", "response_mask", "response_lengths"]
        data = batch.to_workers(columns, {"validation": validation}, list(batch.local.non_tensor_batch))
        return RewardResult.from_batch(self.rule_reward_wg.compute_rule_reward(data))

    def sync_weights(self) -> None:
        """Give engines in processes of their own the policy's weights, once they are idle."""
        if self.rollout_wg is not self.actor_rollout_wg:
            with timed(self.metrics, "sync_weights"):
                self.rollout_wg.load_weights(self.actor_rollout_wg.submit("collect_weights"))

    # ---- around a step -------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count and time one step, and the bytes that the driver moves in it."""
        self.global_step += 1
        self.metrics = {"training/global_step": float(self.global_step)}
        moved = transfer_count()
        with timed(self.metrics, "step"):
            yield
        self.metrics["perf/driver_bytes"] = float((transfer_count() - moved).total)
        self.training_seconds += self.metrics["timing_s/step"]

    def finish_step(self, batch: StepBatch) -> None:
        """Measure and log, and validate and save where due."""
        step, trainer = self.global_step, self.config.trainer
        self.metrics |= self.measure(batch)
        last = step == self.total_steps
        if last or due(step, trainer.test_freq):
            self.validate()
        if last or due(step, trainer.save_freq):
            with timed(self.metrics, "save_checkpoint"):
                self.save_checkpoint()
        if self.tracking is not None:
            self.tracking.log(self.metrics, step)
        self.progress({"kind": "step", "step": step, "total": self.total_steps, "metrics": self.metrics})

    def measure(self, batch: StepBatch) -> Metrics:
        """The driver's own numbers of a finished step."""
        metrics = data_metrics(batch, self.config.data.max_response_length)
        tokens = float((batch["prompt_lengths"] + batch["response_lengths"]).sum().item())
        return metrics | {
            "training/epoch": self.stream.position / self.stream.size,
            "perf/total_num_tokens": tokens,
            "perf/throughput": tokens / self.metrics["timing_s/step"],
        }

    def validate(self) -> None:
        """Score the held-out prompts, greedily and sampled with fixed seeds; keep the samples, report."""
        if self.val_dataset is None or not len(self.val_dataset):
            return
        self.progress({"kind": "stage", "text": f"validating after step {self.global_step}"})
        with timed(self.metrics, "testing"):
            rows = [self.val_dataset[i] for i in range(len(self.val_dataset))]
            names = [f"val-{i}" for i in range(len(rows))]
            sampling = self.config.actor_rollout_ref.rollout.val
            sampled = [] if sampling.greedy else [sampling] * self.config.trainer.val_n
            batch = self.sample(self.prompts_of(rows, names), [greedy_sampling(), *sampled], "val")
            scores = self.score(batch, validation=True).scores
        samples = sample_rows(batch, scores, self.tokenizer, 1 + len(sampled))
        metrics = validation_metrics(samples)
        self.metrics |= metrics
        self.validations[self.global_step] = headline(metrics)
        write_samples(self.run / "generations" / f"step_{self.global_step}.jsonl", samples)
        self.progress({"kind": "validation", "step": self.global_step, "metrics": metrics})
        if self.global_step == 0 and self.tracking is not None:
            self.tracking.log(self.metrics, 0)

    # ---- start, save, resume, end --------------------------------------------------------------------

    def start_tracking(self) -> None:
        """Open the trackers; lines of steps after the resumed one are dropped."""
        trainer = self.config.trainer
        names = (trainer.project_name, trainer.experiment_name)
        settings = dataclasses.asdict(self.config)
        self.tracking = Tracking(self.run, trainer.logger, *names, settings, self.global_step)

    def save_checkpoint(self) -> None:
        """Write everything that the next step depends on; complete or absent."""
        best = max(self.validations, key=lambda step: self.validations[step], default=-1)
        with self.checkpoints.writing(self.global_step, self.state_dict(), keep_also=best) as folder:
            self.actor_rollout_wg.save_checkpoint(str(folder.resolve() / "actor"), self.global_step)
            if self.critic_wg is not None:
                self.critic_wg.save_checkpoint(str(folder.resolve() / "critic"), self.global_step)
            self.in_flight.save(folder / "in_flight")
            (folder / "config.yaml").write_text(to_yaml(self.config))

    def load_checkpoint(self) -> None:
        """Go on from the newest complete step of the run's folder, if there is one.

        Raises:
            CheckpointError: there is one and `trainer.resume_mode=disable`.
        """
        folder = self.checkpoints.latest()
        if folder is None:
            return
        if self.config.trainer.resume_mode == "disable":
            raise CheckpointError(
                f"{folder} holds a checkpoint and trainer.resume_mode=disable; "
                "choose another trainer.default_local_dir or remove the folder"
            )
        self.progress({"kind": "stage", "text": f"going on from {folder}"})
        state = read_state(folder)
        self.load_state_dict(state)
        self.in_flight.load(folder / "in_flight", state["in_flight"])
        self.actor_rollout_wg.load_checkpoint(str(folder.resolve() / "actor"))
        if self.critic_wg is not None:
            self.critic_wg.load_checkpoint(str(folder.resolve() / "critic"))

    def state_dict(self) -> dict[str, Any]:
        """The driver's part of a checkpoint."""
        return {
            "global_step": self.global_step,
            "drawn": self.drawn,
            "version": self.version,
            "in_flight": [generation.version for generation in self.in_flight.queue],
            "stream": self.stream.state_dict(),
            "kl_ctrl": self.kl_ctrl.state_dict(),
            "validations": self.validations,
            "training_seconds": self.training_seconds,
            "versions": versions(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the driver's part of a checkpoint."""
        self.global_step, self.drawn, self.version = state["global_step"], state["drawn"], state["version"]
        self.stream.load_state_dict(state["stream"])
        self.kl_ctrl.load_state_dict(state["kl_ctrl"])
        self.validations = {int(step): value for step, value in state["validations"].items()}
        self.training_seconds = state["training_seconds"]

    def finish(self) -> FitResult:
        """Export the model, close the trackers, draw the report."""
        exported = self.export(self.run / "export") if self.config.trainer.export_at_end else ""
        if self.tracking is not None:
            self.tracking.close()
        if self.config.trainer.report and self.global_step:
            if importlib.util.find_spec("plotly") is None:
                logger.warning("no report.html: it needs a package, pip install 'rl-trainer[report]'")
            else:
                write_report(self.run)
        return self.result(exported)

    def export(self, folder: Path) -> str:
        """Write the policy as a Hugging Face model."""
        self.progress({"kind": "stage", "text": f"exporting the model to {folder}"})
        self.actor_rollout_wg.export_hf(str(folder.resolve()))
        return str(folder)

    def result(self, exported: str = "") -> FitResult:
        """How the run stands."""
        before = self.validations.get(0, math.nan)
        after = self.validations[max(self.validations)] if self.validations else math.nan
        return FitResult(self.global_step, before, after, self.training_seconds, exported, dict(self.metrics))


def kl_controller(config: PPOConfig) -> FixedKLController | AdaptiveKLController:
    """The controller of the KL coefficient in the reward."""
    ctrl = config.algorithm.kl_ctrl
    if ctrl.type == "adaptive":
        return AdaptiveKLController(ctrl.kl_coef, ctrl.target_kl, ctrl.horizon)
    return FixedKLController(ctrl.kl_coef)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; never where `every` is not positive."""
    return every > 0 and step % every == 0
