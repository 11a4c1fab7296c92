"""The training loop: one driver program that calls groups of workers."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rl_algos import (
    AdaptiveKLController,
    FixedKLController,
    apply_kl_penalty,
    overlong_penalty,
    place_on_last_token,
)
from rl_controller import RayWorkerGroup
from rl_protocol import DataProto
from rl_rollout import SamplingConfig

from .advantages import compute_advantages, needs_old_log_probs, needs_values
from .checkpoint import CheckpointStore, read_state
from .config import PPOConfig
from .config_loading import to_yaml
from .dataset import PromptDataset, Row, collate
from .errors import CheckpointError, TrainingError
from .metrics import Metrics, data_metrics, timed
from .plan import optimizer_steps_per_batch, total_training_steps
from .prompt_stream import PromptStream
from .reward import RewardResult
from .roles import ResourcePoolManager, Role
from .seeds import row_seeds
from .step_batch import MODEL_COLUMNS, StepBatch, prompt_lengths, response_lengths
from .tracking import Tracking
from .updates import UpdatePlan, update_in_mini_batches
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
        training_seconds: time in training steps, validation and saving left out.
        export: folder of the exported model, or empty.
        metrics: of the last step.
    """

    steps: int
    val_before: float
    val_after: float
    training_seconds: float
    export: str
    metrics: Metrics


class RayPPOTrainer:
    """PPO and its relatives over Ray worker groups.

    Each arrow of the loop is a method that takes a `StepBatch` and returns one; a subclass overrides the
    stage that it changes.

    Args:
        config: the whole tree, resolved (`plan.resolve`).
        tokenizer: of the policy.
        role_worker_mapping: worker class of each role.
        resource_pool_manager: pools, and which role runs where.
        ray_worker_group_cls: the group class.
        processor: of a model that takes more than text; kept for stages that need it.
        reward_fn: scores a generated batch.
        val_reward_fn: the same for validation; None: `reward_fn`.
        train_dataset: rows with `input_ids` and the reward's columns.
        val_dataset: the same for validation; None: no validation.
        collate_fn: rows to arrays; None: `dataset.collate`.
        train_sampler: the order of training rows; None: a seeded `PromptStream`.
        progress: called with each event of the run (see `Display`).
    """

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        role_worker_mapping: Mapping[Role, type],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[RayWorkerGroup] = RayWorkerGroup,
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
        trainer, algorithm = config.trainer, config.algorithm
        self.config, self.tokenizer, self.processor = config, tokenizer, processor
        self.role_worker_mapping, self.resource_pool_manager = role_worker_mapping, resource_pool_manager
        self.ray_worker_group_cls, self.progress = ray_worker_group_cls, progress
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn or reward_fn
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
        self.collate_fn = collate_fn or (lambda rows: collate(rows, pad))
        self.stream = train_sampler or PromptStream(len(train_dataset), trainer.seed, config.data.shuffle)
        self.total_steps = total_training_steps(config, len(train_dataset))
        self.use_critic = needs_values(algorithm.adv_estimator)
        self.use_reference = algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
        # With one optimizer step per batch the old log-probs are the current ones: no extra pass.
        self.use_old_log_probs = (
            optimizer_steps_per_batch(config) > 1
            or algorithm.use_kl_in_reward
            or needs_old_log_probs(algorithm.adv_estimator)
        )
        self.temperature = {"temperature": config.actor_rollout_ref.rollout.temperature}
        self.kl_ctrl = kl_controller(config)
        self.run = Path(trainer.default_local_dir)
        self.checkpoints = CheckpointStore(self.run / "checkpoints", trainer.max_ckpt_to_keep)
        self.tracking: Tracking | None = None
        self.global_step, self.training_seconds = 0, 0.0
        self.metrics: Metrics = {}
        self.validations: dict[int, float] = {}

    def init_workers(self) -> None:
        """Create the pools, one fused worker class and group per pool, and load the models."""
        groups = spawn_groups(
            self.config,
            self.role_worker_mapping,
            self.resource_pool_manager,
            self.ray_worker_group_cls,
            self.total_steps,
        )
        # An engine sizes its cache by the memory that is left, so the policy comes last.
        for role in sorted(groups, key=lambda role: role is Role.ActorRollout):
            self.progress({"kind": "stage", "text": f"loading the {role.value} model"})
            groups[role].init_model()
        self.actor_rollout_wg = groups[Role.ActorRollout]
        self.ref_policy_wg = groups.get(Role.RefPolicy, self.actor_rollout_wg)
        self.critic_wg = groups.get(Role.Critic)

    # ---- the loop ------------------------------------------------------------------------------------

    def fit(self) -> FitResult:
        """Train to the last step; validate, save and log on the way."""
        self.load_checkpoint()
        self.start_tracking()
        if self.config.trainer.val_before_train and self.global_step == 0:
            self.validate()
        while self.global_step < self.total_steps:
            with self.step():
                batch = self.generate(self.next_prompts())
                batch = self.compute_rewards(batch)
                batch = self.compute_old_log_probs(batch)
                batch = self.compute_ref_log_probs(batch)
                batch = self.compute_values(batch)
                batch = self.compute_advantages(batch)
                self.update_critic(batch)
                self.update_actor(batch)
            self.finish_step(batch)
        return self.finish()

    def next_prompts(self) -> DataProto:
        """The step's prompts, each repeated `rollout.n` times, with `uid` and sampling seed per row."""
        data, trainer = self.config.data, self.config.trainer
        count = data.train_batch_size
        if trainer.total_training_steps < 0:
            count = min(count, trainer.total_epochs * self.stream.size - self.stream.position)
        drawn = self.stream.take(count)
        rows = [self.train_dataset[row] for _, row in drawn]
        names = [f"{epoch}-{row}" for epoch, row in drawn]
        return self._repeated(rows, names, self.config.actor_rollout_ref.rollout.n, self.global_step)

    def generate(self, prompts: DataProto) -> StepBatch:
        """Sample one response per row."""
        with timed(self.metrics, "gen"):
            return self._sample(prompts)

    def compute_rewards(self, batch: StepBatch) -> StepBatch:
        """Score responses; a row without a value trains nothing."""
        with timed(self.metrics, "reward"):
            result = self.reward_fn(batch.local)
        reward, scores = self.config.reward, result.scores
        if reward.overlong_buffer_len:
            limit, buffer = self.config.data.max_response_length, reward.overlong_buffer_len
            lengths = response_lengths(batch)
            scores = scores + overlong_penalty(lengths, limit, buffer, reward.overlong_penalty_factor)
        mask = batch["response_mask"] * ~scores.isnan()[:, None]
        placed = place_on_last_token(torch.nan_to_num(scores), mask)
        batch.put(response_mask=mask, token_level_scores=placed, token_level_rewards=placed)
        self.metrics |= result.metrics()
        return batch

    def compute_old_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the policy that sampled, where several optimizer steps or a KL term read them."""
        if self.use_old_log_probs:
            with timed(self.metrics, "old_log_prob"):
                data = batch.to_workers(MODEL_COLUMNS, ["response_mask"], self.temperature)
                made = self.actor_rollout_wg.submit("compute_log_prob", data)
                batch.add_remote(made.select(["old_log_probs"]))
        return batch

    def compute_ref_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the reference policy, where a KL term reads them."""
        if self.use_reference:
            with timed(self.metrics, "ref"):
                data = batch.to_workers(MODEL_COLUMNS, ["response_mask"], self.temperature)
                batch.add_remote(self.ref_policy_wg.submit("compute_ref_log_prob", data))
        return batch

    def compute_values(self, batch: StepBatch) -> StepBatch:
        """The critic's values."""
        if self.critic_wg is not None:
            with timed(self.metrics, "values"):
                data = batch.to_workers(MODEL_COLUMNS, ["response_mask"], {})
                batch.add_remote(self.critic_wg.submit("compute_values", data))
                batch.fetch("values")
        return batch

    def compute_advantages(self, batch: StepBatch) -> StepBatch:
        """KL in the reward (optional), then the estimator."""
        algorithm = self.config.algorithm
        with timed(self.metrics, "adv"):
            if algorithm.use_kl_in_reward:
                batch = self._subtract_kl(batch)
            if needs_old_log_probs(algorithm.adv_estimator):
                batch.fetch("old_log_probs")
            advantages, returns = compute_advantages(algorithm, batch.tensors | {"index": batch.uids})
            batch.put(advantages=advantages, returns=returns)
        return batch

    def update_critic(self, batch: StepBatch) -> None:
        """One optimizer step of the critic per mini-batch."""
        if self.critic_wg is None:
            return
        critic = self.config.critic
        plan = UpdatePlan(
            critic.ppo_mini_batch_size,
            critic.ppo_epochs,
            critic.loss_agg_mode,
            0,
            (self.config.trainer.seed, self.global_step),
            remote=[*MODEL_COLUMNS, "values"],
            local=["returns"],
            meta_info={},
        )
        with timed(self.metrics, "update_critic"):
            self.metrics |= update_in_mini_batches(batch, self.critic_wg.update_critic, plan)

    def update_actor(self, batch: StepBatch) -> None:
        """One optimizer step of the policy per mini-batch, after the critic's warm-up."""
        if self.global_step <= self.config.trainer.critic_warmup:
            return
        actor = self.config.actor_rollout_ref.actor
        old = ["old_log_probs"] if self.use_old_log_probs else []
        reference = ["ref_log_prob"] if actor.use_kl_loss else []
        plan = UpdatePlan(
            actor.ppo_mini_batch_size,
            actor.ppo_epochs,
            actor.loss_agg_mode,
            actor.loss_scale_factor,
            (self.config.trainer.seed, self.global_step),
            remote=[*MODEL_COLUMNS, "rollout_log_probs", *old, *reference],
            local=["advantages"],
            meta_info=self.temperature,
        )
        with timed(self.metrics, "update_actor"):
            self.metrics |= update_in_mini_batches(batch, self.actor_rollout_wg.update_actor, plan)

    # ---- parts of stages -----------------------------------------------------------------------------

    def _repeated(self, rows: Sequence[Row], names: Sequence[str], n: int, step: int | str) -> DataProto:
        uids = np.array(names, dtype=object)
        prompts = DataProto.from_single_dict({**self.collate_fn(rows), "uid": uids}).repeat(n)
        seeds = row_seeds(self.config.trainer.seed, step, list(prompts.non_tensor_batch["uid"]))
        return prompts.union(DataProto.from_dict({"seeds": seeds}))

    def _sample(self, prompts: DataProto, sampling: SamplingConfig | None = None) -> StepBatch:
        """Generate; the driver keeps the prompts' object columns and reads the responses."""
        inputs = prompts.select(non_tensor_batch_keys=["uid"])
        inputs.meta_info = {"sampling": sampling} if sampling else {}
        remote = self.actor_rollout_wg.submit("generate_sequences", inputs)
        batch = StepBatch(remote, prompts.select(batch_keys=[]))
        batch.fetch("responses", "response_mask", "attention_mask")
        return batch

    def _subtract_kl(self, batch: StepBatch) -> StepBatch:
        batch.fetch("old_log_probs", "ref_log_prob")
        coefficient = self.kl_ctrl.value
        rewards, metrics = apply_kl_penalty(
            batch["token_level_scores"],
            batch["old_log_probs"],
            batch["ref_log_prob"],
            batch["response_mask"],
            coefficient,
            self.config.algorithm.kl_penalty,
        )
        kl = metrics["reward_kl_penalty"].value().item()
        self.kl_ctrl.update(kl, len(batch))
        self.metrics |= {"actor/reward_kl_penalty": kl, "actor/reward_kl_penalty_coeff": coefficient}
        batch.put(token_level_rewards=rewards)
        return batch

    # ---- around a step -------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count and time one step."""
        self.global_step += 1
        self.metrics = {"training/global_step": float(self.global_step)}
        with timed(self.metrics, "step"):
            yield
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
        lengths = {"response_lengths": response_lengths(batch), "prompt_lengths": prompt_lengths(batch)}
        metrics = data_metrics(batch.tensors | lengths, self.config.data.max_response_length)
        tokens = float(sum(length.sum().item() for length in lengths.values()))
        return metrics | {
            "training/epoch": self.stream.position / self.stream.size,
            "perf/total_num_tokens": tokens,
            "perf/throughput": tokens / self.metrics["timing_s/step"],
        }

    def validate(self) -> None:
        """Score the held-out prompts with fixed seeds, keep the samples, report."""
        if self.val_dataset is None or not len(self.val_dataset):
            return
        self.progress({"kind": "stage", "text": f"validating after step {self.global_step}"})
        with timed(self.metrics, "testing"):
            rows = [self.val_dataset[i] for i in range(len(self.val_dataset))]
            names = [f"val-{i}" for i in range(len(rows))]
            prompts = self._repeated(rows, names, self.config.trainer.val_n, "val")
            batch = self._sample(prompts, self.config.actor_rollout_ref.rollout.val)
            scores = self.val_reward_fn(batch.local).scores
        sources = list(batch.local.non_tensor_batch["data_source"])
        metrics = validation_metrics(sources, batch.uids, scores)
        self.metrics |= metrics
        self.validations[self.global_step] = headline(metrics)
        path = self.run / "generations" / f"step_{self.global_step}.jsonl"
        write_samples(path, sample_rows(batch, scores, self.tokenizer))
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
        with self.checkpoints.writing(self.global_step, self.state_dict()) as folder:
            self.actor_rollout_wg.save_checkpoint(str(folder.resolve() / "actor"), self.global_step)
            if self.critic_wg is not None:
                self.critic_wg.save_checkpoint(str(folder.resolve() / "critic"), self.global_step)
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
        self.load_state_dict(read_state(folder))
        self.actor_rollout_wg.load_checkpoint(str(folder.resolve() / "actor"))
        if self.critic_wg is not None:
            self.critic_wg.load_checkpoint(str(folder.resolve() / "critic"))

    def state_dict(self) -> dict[str, Any]:
        """The driver's part of a checkpoint."""
        return {
            "global_step": self.global_step,
            "stream": self.stream.state_dict(),
            "kl_ctrl": self.kl_ctrl.state_dict(),
            "validations": self.validations,
            "training_seconds": self.training_seconds,
            "versions": versions(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the driver's part of a checkpoint."""
        self.global_step = state["global_step"]
        self.stream.load_state_dict(state["stream"])
        self.kl_ctrl.load_state_dict(state["kl_ctrl"])
        self.validations = {int(step): value for step, value in state["validations"].items()}
        self.training_seconds = state["training_seconds"]

    def finish(self) -> FitResult:
        """Export the model and close the trackers."""
        exported = self.export(self.run / "export") if self.config.trainer.export_at_end else ""
        if self.tracking is not None:
            self.tracking.close()
        return self.result(exported)

    def export(self, folder: Path) -> str:
        """Write the policy as a Hugging Face model."""
        self.progress({"kind": "stage", "text": f"exporting the model to {folder}"})
        self.actor_rollout_wg.export_hf(str(folder.resolve()))
        return str(folder)

    def result(self, exported: str = "") -> FitResult:
        """How the run stands."""
        steps = sorted(self.validations)
        before = self.validations.get(0, math.nan)
        after = self.validations[steps[-1]] if steps else math.nan
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
