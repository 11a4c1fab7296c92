"""The training loop: the algorithm as one driver program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rl_controller import RayWorkerGroup, WorkerGroup
from rl_protocol import DataProto, DataProtoFuture, transfer_count

from ..cluster.roles import ResourcePoolManager, Role
from ..cluster.workers import Workers
from ..config.inputs import needs, uses_old_log_probs, uses_reference
from ..config.steps import is_due, total_training_steps
from ..config.tree import PPOConfig
from ..data.dataset import PromptDataset, padded_collate, to_prompts
from ..data.prompt_stream import PromptStream
from ..data.sources import Row
from ..errors import TrainingError
from ..reward.worker import RewardFn
from ..state.run_state import FitResult, RunState, kl_controller
from ..view.recorder import Event, Recorder
from .advantages import compute_advantages, subtract_kl
from .async_rollouts import build_rollouts
from .checkpoints import RunCheckpoints
from .chosen_tokens import put_chosen_tokens
from .correction import correct
from .dynamic_sampling import fill_up
from .metrics import Metrics, add_counts, data_metrics, throughput, timed
from .rollouts import Rollouts
from .scoring import Scoring, greedy_scores, overlong_penalties, told_lost, without_value
from .step_batch import LOG_PROB_COLUMNS, StepBatch
from .updates import actor_plan, balanced, critic_plan, update_in_mini_batches
from .validation import Validator


class RayPPOTrainer:
    """PPO and its relatives over worker groups.

    Each arrow of the loop is a method that takes a `StepBatch` and returns one; a subclass overrides the
    stage that it changes. What stands around the loop are parts of the trainer: `state` (where the run is),
    `workers`, `rollouts` (where batches come from), `scoring`, `validator`, `checkpoints`, `recorder`.

    Args:
        config: the whole tree, resolved (`plan.resolve`).
        tokenizer: of the policy.
        role_worker_mapping: worker class of each role.
        resource_pool_manager: pools, and which role runs where.
        ray_worker_group_cls: `RayWorkerGroup`, or `LocalWorkerGroup` for everything in this process.
        processor: of a model that takes more than text; kept for stages that need it.
        reward_fn: scores a generated batch, in the processes of the policy's workers.
        val_reward_fn: the same for validation; None: `reward_fn`.
        train_dataset: rows with `input_ids` and the reward's columns.
        val_dataset: the same for validation; None: no validation.
        collate_fn: rows to arrays; None: `dataset.collate`.
        train_sampler: the order of training rows; None: a seeded `PromptStream`.
        progress: called with each event of the run (see `Display`).
    """

    rollouts: Rollouts
    scoring: Scoring
    validator: Validator
    checkpoints: RunCheckpoints
    actor_rollout_wg: WorkerGroup
    ref_policy_wg: WorkerGroup
    critic_wg: WorkerGroup | None

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: PreTrainedTokenizerBase,
        role_worker_mapping: Mapping[Role, type],
        resource_pool_manager: ResourcePoolManager,
        ray_worker_group_cls: type[WorkerGroup] = RayWorkerGroup,
        processor: object | None = None,
        reward_fn: RewardFn | None = None,
        val_reward_fn: RewardFn | None = None,
        train_dataset: PromptDataset | None = None,
        val_dataset: PromptDataset | None = None,
        collate_fn: Callable[[Sequence[Row]], dict[str, Any]] | None = None,
        train_sampler: PromptStream | None = None,
        progress: Callable[[Event], None] = lambda event: None,
    ) -> None:
        if reward_fn is None or train_dataset is None:
            raise TrainingError("RayPPOTrainer needs reward_fn and train_dataset")
        self.config, self.tokenizer, self.processor = config, tokenizer, processor
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.collate_fn = collate_fn or padded_collate(tokenizer, [train_dataset, val_dataset])
        stream = train_sampler or PromptStream(len(train_dataset), config.trainer.seed, config.data.shuffle)
        self.state = RunState(stream, kl_controller(config.algorithm.kl_ctrl))
        self.total_steps = total_training_steps(config, len(train_dataset))
        rewards = (reward_fn, val_reward_fn or reward_fn)
        self.workers = Workers(
            config, role_worker_mapping, resource_pool_manager, ray_worker_group_cls, rewards
        )
        self.recorder = Recorder(config, progress)
        self.metrics: Metrics = {}

    def init_workers(self) -> None:
        """Start the worker processes, load the models, and join the parts that work with them."""
        config, recorder = self.config, self.recorder
        groups = self.workers.start(
            self.total_steps, lambda role: recorder.stage(f"loading the {role} model")
        )
        self.actor_rollout_wg = policy = groups[self.workers.policy]
        # With adapters the policy plays its own reference.
        self.ref_policy_wg = groups.get(Role.RefPolicy, policy)
        self.critic_wg = groups.get(Role.Critic)
        self.rollouts = build_rollouts(config, self.state, groups.get(Role.Rollout, policy), policy)
        self.scoring = Scoring(groups[Role.RuleReward], groups.get(Role.RewardModel))
        self.validator = Validator(
            self.val_dataset, self.collate_fn, self.tokenizer, self.rollouts, self.scoring, recorder
        )
        trained = {"actor": policy} | ({} if self.critic_wg is None else {"critic": self.critic_wg})
        self.checkpoints = RunCheckpoints(self.rollouts, trained, recorder)

    def shutdown(self) -> None:
        """End the workers and what they started, and give their pools back to the cluster."""
        self.workers.shutdown()

    def fit(self) -> FitResult:
        """Train to the last step; validate, save and log on the way."""
        self.load_checkpoint()
        self.recorder.open(self.global_step or -1, self.total_steps)
        self.sync_weights()
        if self.config.trainer.val_before_train and self.global_step == 0:
            self.validate()
        while self.global_step < self.total_steps:
            with self.step():
                batch = self.generate()
                batch = self.compute_rewards(batch)
                batch = self.filter_groups(batch)
                batch = self.compute_old_log_probs(batch)
                batch = self.compute_ref_log_probs(batch)
                batch = self.compute_values(batch)
                batch = self.compute_advantages(batch)
                self.update_critic(batch)
                self.update_actor(batch)
                self.sync_weights()
            self.finish_step(batch)
        return self.finish()

    # ---- stages --------------------------------------------------------------------------------------

    def next_prompts(self) -> DataProto | None:
        """Prompts of a batch, one row each, with a `uid`; None after the last."""
        state, trainer = self.state, self.config.trainer
        if state.drawn >= self.total_steps and not self.config.algorithm.filter_groups.enable:
            return None
        state.drawn += 1
        count = self.config.data.train_batch_size
        if trainer.total_training_steps < 0 and not self.config.algorithm.filter_groups.enable:
            # Dynamic sampling draws past the last epoch, whole batches as before.
            count = min(count, trainer.total_epochs * state.stream.size - state.stream.position)
        drawn = state.stream.take(count)
        collated = self.collate_fn([self.train_dataset[row] for _, row in drawn])
        return to_prompts(collated, [f"{epoch}-{row}" for epoch, row in drawn])

    def generate(self) -> StepBatch:
        """`rollout.n` responses per prompt; with `trainer.staleness`, of prompts drawn some steps ago."""
        with timed(self.metrics, "gen"):
            batch, measured = self.rollouts.next(self.next_prompts)
        self.metrics |= measured
        return balanced(batch, self.balanced_ranks)

    def compute_rewards(self, batch: StepBatch) -> StepBatch:
        """Score responses: `scores` `[B]`; a row without a value trains nothing.

        A subclass changes `scores`, or puts `token_level_rewards` `[B, R]` to reward single tokens.
        """
        with timed(self.metrics, "reward"):
            raw, result = self.scoring.of(batch)
        lost = without_value(raw, result, f"step {self.global_step}, logs in {self.recorder.run}/logs")
        scores = torch.nan_to_num(raw) + overlong_penalties(self.config, batch["response_lengths"])
        batch.put(raw_scores=raw, scores=scores.masked_fill(lost, 0.0))
        if lost.any():
            batch.put(response_mask=batch["response_mask"] * ~lost[:, None])
            self.recorder.once("lost", told_lost(lost, result))
        if needs(self.config, "reward_components"):
            batch.put(reward_components=result.components(self.config.algorithm.gdpo_reward_keys))
        if needs(self.config, "reward_baselines"):
            with timed(self.metrics, "gen_max"):
                baselines, measured = greedy_scores(batch, self.rollouts, self.scoring)
            batch.put(reward_baselines=baselines)
            self.metrics |= measured
        add_counts(self.metrics, result.metrics())
        return batch

    def filter_groups(self, batch: StepBatch) -> StepBatch:
        """Dynamic sampling: put further prompts in the place of those whose responses score the same."""
        config = self.config.algorithm.filter_groups
        if not config.enable:
            return batch
        wanted, most = self.config.data.train_batch_size, config.max_num_gen_batches
        more: Callable[[], StepBatch] = lambda: self.compute_rewards(self.generate())  # noqa: E731
        batch, counts = fill_up(batch, wanted, most, more)
        self.metrics |= counts
        return batch

    def compute_old_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the policy that sampled, and the correction where the engine's differ."""
        correction = self.config.algorithm.rollout_correction
        if uses_old_log_probs(self.config):
            with timed(self.metrics, "old_log_prob"):
                batch.add_remote(self._old_log_probs(batch))
        if correction.active:
            self.metrics |= correct(batch, correction)
        return batch

    def compute_ref_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the reference policy, where a KL term reads them."""
        if uses_reference(self.config):
            with timed(self.metrics, "ref"):
                data = batch.to_workers(LOG_PROB_COLUMNS, self.temperature)
                batch.add_remote(self.ref_policy_wg.submit("compute_ref_log_prob", data))
        return batch

    def compute_values(self, batch: StepBatch) -> StepBatch:
        """The critic's values."""
        if self.critic_wg is not None:
            with timed(self.metrics, "values"):
                data = batch.to_workers(LOG_PROB_COLUMNS, {})
                batch.add_remote(self.critic_wg.submit("compute_values", data))
        return batch

    def compute_advantages(self, batch: StepBatch) -> StepBatch:
        """KL in the reward (optional), then the estimator."""
        algorithm = self.config.algorithm
        with timed(self.metrics, "adv"):
            if algorithm.use_kl_in_reward:
                self.metrics |= subtract_kl(batch, self.state.kl_ctrl, algorithm.kl_penalty)
            advantages, returns = compute_advantages(algorithm, batch)
            batch.put(advantages=advantages, returns=returns)
        return batch

    def update_critic(self, batch: StepBatch) -> None:
        """One optimizer step of the critic per mini-batch."""
        if self.critic_wg is None:
            return
        plan = critic_plan(self.config, self.global_step, self.balanced_ranks)
        with timed(self.metrics, "update_critic"):
            self.metrics |= update_in_mini_batches(batch, self.critic_wg.update_critic, plan)

    def update_actor(self, batch: StepBatch) -> None:
        """One optimizer step of the policy per mini-batch, after the critic's warm-up."""
        if self.global_step <= self.config.trainer.critic_warmup:
            return
        weighed = "rollout_is_weights" in batch.made
        plan = actor_plan(self.config, self.global_step, self.balanced_ranks, weighed)
        update = self.actor_rollout_wg.update_actor
        chosen = partial(put_chosen_tokens, self.config, self.actor_rollout_wg, self.global_step)
        with timed(self.metrics, "update_actor"):
            self.metrics |= update_in_mini_batches(batch, update, plan, chosen)
        self.state.version += 1

    def sync_weights(self) -> None:
        """Give engines in processes of their own the policy's weights."""
        if self.rollouts.has_own_processes:
            with timed(self.metrics, "sync_weights"):
                self.rollouts.sync_weights()

    # ---- around a step -------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count and time one step, and the bytes that the driver moves in it."""
        self.state.global_step += 1
        self.metrics = {"training/global_step": float(self.global_step)}
        moved = transfer_count()
        with timed(self.metrics, "step"):
            yield
        self.metrics["perf/driver_bytes"] = float((transfer_count() - moved).total)
        self.state.training_seconds += self.metrics["timing_s/step"]

    def finish_step(self, batch: StepBatch) -> None:
        """Measure and log, and validate and save where due."""
        step, trainer, last = self.global_step, self.config.trainer, self.global_step == self.total_steps
        self.metrics |= self.measure(batch)
        if last or is_due(step, trainer.test_freq):
            self.validate()
        # Before the checkpoint: killed in between, the run does this step again and replaces the line.
        self.recorder.step(self.metrics, step, self.total_steps)
        if last or is_due(step, trainer.save_freq):
            self.recorder.stage(f"saving step {step}")
            self.save_checkpoint()

    def measure(self, batch: StepBatch) -> Metrics:
        """The driver's own numbers of a finished step."""
        metrics = data_metrics(batch, self.config.data.max_response_length)
        metrics["training/epoch"] = self.state.stream.position / self.state.stream.size
        return metrics | throughput(batch, self.metrics["timing_s/step"])

    def validate(self) -> None:
        """Score the held-out prompts, if there are any; keep the samples, report."""
        self.metrics |= (measured := self.validator.run())
        if measured and self.global_step == 0:
            self.recorder.log(self.metrics, 0)

    def save_checkpoint(self) -> None:
        """Write everything that the next step depends on; complete or absent."""
        self.checkpoints.save()

    def load_checkpoint(self) -> None:
        """Go on from the newest complete step of the run's folder, if there is one."""
        self.checkpoints.resume()

    def finish(self) -> FitResult:
        """Export the model, close the trackers, draw the report."""
        exported = self.export() if self.config.trainer.export_at_end else ""
        self.recorder.close(report=self.global_step > 0)
        return self.state.result(self.metrics, exported)

    def export(self) -> str:
        """Write the policy as a Hugging Face model to `<run>/export`; gives the folder."""
        folder = self.recorder.run / "export"
        self.recorder.stage(f"exporting the model to {folder}")
        self.actor_rollout_wg.export_hf(str(folder.resolve()))
        return str(folder)

    # ---- parts of stages -----------------------------------------------------------------------------

    @property
    def global_step(self) -> int:
        """Training steps done, the present one included."""
        return self.state.global_step

    @property
    def balanced_ranks(self) -> int:
        """Ranks among which rows are balanced; 0 where `trainer.balance_batch` is off."""
        return self.actor_rollout_wg.world_size if self.config.trainer.balance_batch else 0

    @property
    def temperature(self) -> dict[str, float]:
        """What the workers' log-probs are divided by, as the engine's are."""
        return {"temperature": self.config.actor_rollout_ref.rollout.temperature}

    def _old_log_probs(self, batch: StepBatch) -> DataProtoFuture:
        """`old_log_probs`, and what else the estimator reads of the policy that sampled."""
        if self.config.algorithm.rollout_correction.bypass_mode:
            return batch.remote.select(["rollout_log_probs"], []).rename("rollout_log_probs", "old_log_probs")
        squares = needs(self.config, "sum_pi_squared")
        data = batch.to_workers(LOG_PROB_COLUMNS, {**self.temperature, "sum_pi_squared": squares})
        made: DataProtoFuture = self.actor_rollout_wg.submit("compute_log_prob", data)
        return made.select(["old_log_probs", *(["sum_pi_squared"] if squares else [])])
