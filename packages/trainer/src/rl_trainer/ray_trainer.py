"""The training loop: the algorithm as one driver program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from rl_algos import apply_kl_penalty, overlong_penalty
from rl_protocol import DataProto, DataProtoFuture
from rl_rollout import greedy_sampling

from .advantages import compute_advantages, needs, read_by_loss
from .chosen_tokens import choose_tokens
from .correction import correct
from .dynamic_sampling import fill_up
from .metrics import timed
from .plan import optimizer_steps_per_batch
from .step_batch import MODEL_COLUMNS, StepBatch, tensors_of
from .training_run import FitResult, TrainingRun
from .updates import UpdatePlan, balanced, update_in_mini_batches

LOG_PROB_COLUMNS = (*MODEL_COLUMNS, "response_mask")


class RayPPOTrainer(TrainingRun):
    """PPO and its relatives over worker groups.

    Each arrow of the loop is a method that takes a `StepBatch` and returns one; a subclass overrides the
    stage that it changes.

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

    def fit(self) -> FitResult:
        """Train to the last step; validate, save and log on the way."""
        self.load_checkpoint()
        self.start_tracking()
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
        if self.drawn >= self.total_steps and not self.config.algorithm.filter_groups.enable:
            return None
        self.drawn += 1
        data, trainer = self.config.data, self.config.trainer
        count = data.train_batch_size
        if trainer.total_training_steps < 0:
            # Dynamic sampling may draw past the last epoch; a step always has a prompt.
            count = max(1, min(count, trainer.total_epochs * self.stream.size - self.stream.position))
        drawn = self.stream.take(count)
        rows = [self.train_dataset[row] for _, row in drawn]
        names = [f"{epoch}-{row}" for epoch, row in drawn]
        return self.prompts_of(rows, names)

    def generate(self) -> StepBatch:
        """`rollout.n` responses per prompt; with `trainer.staleness`, of prompts drawn some steps ago."""
        with timed(self.metrics, "gen"):
            generation = self.in_flight.next(self.next_prompts)
            batch = self.read(generation)
        self.metrics["training/staleness"] = float(self.version - generation.version)
        return balanced(batch, self.balanced_ranks)

    def compute_rewards(self, batch: StepBatch) -> StepBatch:
        """Score responses: `scores` `[B]`; a row without a value trains nothing.

        A subclass changes `scores`, or puts `token_level_rewards` `[B, R]` to reward single tokens.
        """
        with timed(self.metrics, "reward"):
            result = self.score(batch)
            raw = result.scores + self._model_scores(batch)
        scores, lost = torch.nan_to_num(raw), raw.isnan()
        reward = self.config.reward
        if reward.overlong_buffer_len:
            limit, buffer = self.config.data.max_response_length, reward.overlong_buffer_len
            scores += overlong_penalty(
                batch["response_lengths"], limit, buffer, reward.overlong_penalty_factor
            )
        batch.put(raw_scores=raw, scores=scores.masked_fill(lost, 0.0))
        if lost.any():
            batch.put(response_mask=batch["response_mask"] * ~lost[:, None])
        if needs(self.config, "reward_components"):
            batch.put(reward_components=result.components(self.config.algorithm.gdpo_reward_keys))
        if needs(self.config, "reward_baselines"):
            batch.put(reward_baselines=self._greedy_scores(batch))
        self.metrics |= result.metrics()
        return batch

    def filter_groups(self, batch: StepBatch) -> StepBatch:
        """Dynamic sampling: put further prompts in the place of those whose responses score the same."""
        config = self.config.algorithm.filter_groups
        if not config.enable:
            return batch
        more: Callable[[], StepBatch] = lambda: self.compute_rewards(self.generate())  # noqa: E731
        wanted = self.config.data.train_batch_size
        batch, batches, left_out = fill_up(batch, wanted, config.max_num_gen_batches, more)
        self.metrics |= {
            "train/num_gen_batches": float(batches),
            "train/filtered_prompts/sum": float(left_out),
        }
        return batch

    def compute_old_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the policy that sampled, and the correction where the engine's differ."""
        correction = self.config.algorithm.rollout_correction
        if self.uses_old_log_probs:
            with timed(self.metrics, "old_log_prob"):
                batch.add_remote(self._old_log_probs(batch))
        if correction.active:
            self.metrics |= correct(batch, correction)
        return batch

    def compute_ref_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the reference policy, where a KL term reads them."""
        if self.config.algorithm.use_kl_in_reward or self.config.actor_rollout_ref.actor.use_kl_loss:
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
                batch = self._subtract_kl(batch)
            advantages, returns = compute_advantages(algorithm, batch)
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
            columns=[*MODEL_COLUMNS, "values", "returns"],
            meta_info={},
            workers=self.balanced_ranks,
        )
        with timed(self.metrics, "update_critic"):
            self.metrics |= update_in_mini_batches(batch, self.critic_wg.update_critic, plan)

    def update_actor(self, batch: StepBatch) -> None:
        """One optimizer step of the policy per mini-batch, after the critic's warm-up."""
        if self.global_step <= self.config.trainer.critic_warmup:
            return
        actor = self.config.actor_rollout_ref.actor
        old = ["old_log_probs"] if self.uses_old_log_probs else []
        reference = ["ref_log_prob"] if actor.use_kl_loss else []
        weights = ["rollout_is_weights"] if "rollout_is_weights" in batch.made else []
        chosen = ["selected"] if "selected" in read_by_loss(self.config) else []
        plan = UpdatePlan(
            actor.ppo_mini_batch_size,
            actor.ppo_epochs,
            actor.loss_agg_mode,
            actor.loss_scale_factor,
            (self.config.trainer.seed, self.global_step),
            columns=[*MODEL_COLUMNS, "rollout_log_probs", "advantages", *old, *reference, *weights, *chosen],
            meta_info=self.temperature,
            workers=self.balanced_ranks,
            prepare=self._choose_tokens if chosen else None,
        )
        with timed(self.metrics, "update_actor"):
            self.metrics |= update_in_mini_batches(batch, self.actor_rollout_wg.update_actor, plan)
        self.version += 1

    # ---- parts of stages -----------------------------------------------------------------------------

    @property
    def uses_old_log_probs(self) -> bool:
        """Whether old log-probs are a column; with one optimizer step per batch they are the current ones."""
        algorithm = self.config.algorithm
        return (
            optimizer_steps_per_batch(self.config) > 1
            or algorithm.use_kl_in_reward
            or algorithm.filter_groups.enable
            or algorithm.rollout_correction.active
            or algorithm.rollout_correction.bypass_mode
            or "selected" in read_by_loss(self.config)
            or needs(self.config, "old_log_probs")
        )

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

    def _model_scores(self, batch: StepBatch) -> torch.Tensor:
        """The reward model's score of each row, `[B]`; 0 without one."""
        if self.rm_wg is None:
            return torch.zeros(len(batch))
        data = batch.to_workers(LOG_PROB_COLUMNS, {}, ["uid", "raw_prompt"])
        scored: DataProto = self.rm_wg.compute_rm_score(data)
        return tensors_of(scored)["rm_scores"].sum(1)

    def _greedy_scores(self, batch: StepBatch) -> torch.Tensor:
        """ReMax's baseline: the score of the greedy response to each row's prompt, `[B]`."""
        wanted = set(batch.uids)
        prompts = batch.prompts[np.array([uid in wanted for uid in batch.prompts.non_tensor_batch["uid"]])]
        with timed(self.metrics, "gen_max"):
            greedy = self.sample(prompts, [greedy_sampling()])
            scores = self.score(greedy).scores + self._model_scores(greedy)
        score_of = dict(zip(greedy.uids, torch.nan_to_num(scores).tolist(), strict=True))
        return torch.tensor([score_of[uid] for uid in batch.uids])

    def _subtract_kl(self, batch: StepBatch) -> StepBatch:
        batch.fetch("old_log_probs", "ref_log_prob", "response_mask")
        coefficient = self.kl_ctrl.value
        rewards, metrics = apply_kl_penalty(
            batch.token_level_rewards,
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

    def _choose_tokens(self, batch: StepBatch) -> None:
        """For losses that choose tokens of the global mini-batch by the current policy (clip_cov, kl_cov)."""
        data = batch.to_workers(LOG_PROB_COLUMNS, self.temperature)
        now = self.actor_rollout_wg.submit("compute_log_prob", data).select(["old_log_probs"])
        batch.remote = batch.remote.union(now.rename("old_log_probs", "log_probs"))
        batch.put(selected=choose_tokens(self.config, batch, self.global_step))
