"""The training loop: one driver program that calls groups of workers."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rl_algos import AdaptiveKLController, FixedKLController, loss_weights
from rl_controller import FusedWorker, RayClassWithInitArgs, RayWorkerGroup
from rl_protocol import DataProto, DataProtoFuture
from rl_rollout import SamplingConfig, engine_env
from transformers import PreTrainedTokenizerBase

from .advantages import apply_kl_penalty, compute_advantages, needs_values, place_scores
from .checkpoint import CheckpointStore, read_state
from .config import PPOConfig
from .config_loading import to_yaml
from .dataset import PromptDataset, Row, collate
from .errors import CheckpointError, TrainingError
from .metrics import Metrics, data_metrics, reduce_metrics, timed
from .mini_batches import mini_batch_rows
from .plan import optimizer_steps_per_batch, total_training_steps
from .prompt_stream import PromptStream
from .reward import RewardResult
from .roles import ResourcePoolManager, Role
from .seeds import row_seeds
from .tracking import Tracking
from .validation import headline, validation_metrics, write_samples
from .versions import versions

logger = logging.getLogger(__name__)

Event = Mapping[str, Any]


@dataclasses.dataclass
class StepBatch:
    """One step's rows: what stays with the workers, and what the driver reads and makes.

    Attributes:
        remote: the rows as the workers hold them; nothing of it is on the driver.
        local: ids, lengths, masks, scores and advantages on the driver, same rows in the same order.
    """

    remote: DataProtoFuture
    local: DataProto

    def fetch(self, *keys: str) -> None:
        """Bring columns from the workers to the driver."""
        self.local = self.local.union(self.remote.select(batch_keys=list(keys)).get())

    def send(self, *keys: str, columns: Sequence[str] = ()) -> DataProtoFuture:
        """The workers' rows together with columns that the driver made."""
        return self.remote.union(self.local.select(batch_keys=list(keys), non_tensor_batch_keys=list(columns)))


@dataclasses.dataclass(frozen=True)
class FitResult:
    """How a run went: validation scores (NaN without validation) and where the model is."""

    steps: int
    val_before: float
    val_after: float
    training_seconds: float
    export: str


class RayPPOTrainer:
    """PPO and its relatives over Ray worker groups.

    Each arrow of the loop is a method that takes a `StepBatch` and returns one; a subclass overrides the
    stage that it changes.

    Args:
        config: the whole tree, resolved.
        tokenizer: of the policy.
        role_worker_mapping: worker class of each role.
        resource_pool_manager: pools, and which role runs where.
        ray_worker_group_cls: the group class.
        processor: unused for text; models with images need one.
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
        collate_fn: Callable[[Sequence[Row]], dict[str, torch.Tensor | np.ndarray]] | None = None,
        train_sampler: PromptStream | None = None,
        progress: Callable[[Event], None] = lambda event: None,
    ) -> None:
        if reward_fn is None or train_dataset is None:
            raise TrainingError("a trainer needs reward_fn and train_dataset")
        self.config, self.tokenizer, self.processor = config, tokenizer, processor
        self.role_worker_mapping, self.resource_pool_manager = role_worker_mapping, resource_pool_manager
        self.ray_worker_group_cls = ray_worker_group_cls
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn or reward_fn
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self.collate_fn = collate_fn or (lambda rows: collate(rows, int(pad or 0)))
        trainer = config.trainer
        self.stream = train_sampler or PromptStream(len(train_dataset), trainer.seed, config.data.shuffle)
        self.progress = progress
        self.run = Path(trainer.default_local_dir)
        self.checkpoints = CheckpointStore(self.run / "checkpoints", trainer.max_ckpt_to_keep)
        self.total_steps = total_training_steps(config, len(train_dataset))
        self.use_critic = needs_values(config.algorithm.adv_estimator)
        self.use_reference = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
        self.kl_ctrl = self._kl_controller()
        self.global_step, self.metrics = 0, Metrics()
        self.training_seconds = 0.0
        self.validations: dict[int, float] = {}

    # ---- the loop ----

    def fit(self) -> FitResult:
        """Train to the last step; validate, save and log on the way."""
        self.load_checkpoint()
        self.tracking = self._tracking()
        if self.config.trainer.val_before_train and self.global_step == 0:
            self.validate()
        self.progress({"kind": "stage", "text": f"training, {self.total_steps} steps"})
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
                self.measure(batch)
            self.finish_step()
        return self.finish()

    def next_prompts(self) -> DataProto:
        """The step's prompts, each repeated `rollout.n` times, with uid and sampling seed per row."""
        left = self.config.trainer.total_epochs * self.stream.size - self.stream.position
        limited = self.config.trainer.total_training_steps < 0
        count = min(self.config.data.train_batch_size, left) if limited else self.config.data.train_batch_size
        drawn = self.stream.take(count)
        rows = [self.train_dataset[row] for _, row in drawn]
        names = [f"{epoch}-{row}" for epoch, row in drawn]
        return self._prompts(rows, names, self.config.actor_rollout_ref.rollout.n, self.global_step)

    def generate(self, prompts: DataProto) -> StepBatch:
        """Sample one response per row."""
        with timed(self.metrics, "gen"):
            remote = self.actor_rollout_wg.generate_sequences(self._generation_inputs(prompts))
            batch = StepBatch(remote, prompts.select(non_tensor_batch_keys=list(prompts.non_tensor_batch)))
            batch.fetch("responses", "response_mask", "attention_mask")
        return batch

    def compute_rewards(self, batch: StepBatch) -> StepBatch:
        """Score responses; a row without a value trains nothing."""
        with timed(self.metrics, "reward"):
            result = self.reward_fn(batch.local)
        valued = ~result.scores.isnan()
        mask = batch.local.batch["response_mask"] * valued[:, None]
        tensors = dict(batch.local.batch.items()) | {"response_mask": mask}
        tensors["token_level_scores"] = place_scores(torch.nan_to_num(result.scores), mask)
        tensors["token_level_rewards"] = tensors["token_level_scores"]
        batch.local = DataProto.from_dict(tensors, batch.local.non_tensor_batch)
        self.metrics |= {f"reward/{kind}/sum": float(count) for kind, count in result.failures.items()}
        self.metrics |= {f"reward/{name}": float(np.nanmean(x)) for name, x in result.extras.items()}
        return batch

    def compute_old_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the policy that generated, where more than one optimizer step or the KL reads them."""
        if optimizer_steps_per_batch(self.config) > 1 or self.config.algorithm.use_kl_in_reward:
            with timed(self.metrics, "old_log_prob"):
                batch.remote = batch.remote.union(self.actor_rollout_wg.compute_log_prob(batch.remote))
        return batch

    def compute_ref_log_probs(self, batch: StepBatch) -> StepBatch:
        """Log-probs of the reference policy, where a KL term reads them."""
        if self.use_reference:
            with timed(self.metrics, "ref"):
                batch.remote = batch.remote.union(self.ref_policy_wg.compute_ref_log_prob(batch.remote))
        return batch

    def compute_values(self, batch: StepBatch) -> StepBatch:
        """The critic's values."""
        if self.use_critic:
            with timed(self.metrics, "values"):
                batch.remote = batch.remote.union(self.critic_wg.compute_values(batch.remote))
                batch.fetch("values")
        return batch

    def compute_advantages(self, batch: StepBatch) -> StepBatch:
        """KL in the reward (optional), then the estimator."""
        with timed(self.metrics, "adv"):
            if self.config.algorithm.use_kl_in_reward:
                batch = self._subtract_kl(batch)
            tensors = dict(batch.local.batch.items())
            index = batch.local.non_tensor_batch["uid"]
            advantages, returns = compute_advantages(self.config.algorithm, tensors | {"index": index})
            made = {"advantages": advantages, "returns": returns}
            batch.local = batch.local.union(DataProto.from_dict(made))
        return batch

    def update_critic(self, batch: StepBatch) -> None:
        """One optimizer step of the critic per mini-batch."""
        if self.use_critic:
            critic = self.config.critic
            with timed(self.metrics, "update_critic"):
                self._update(
                    batch,
                    self.critic_wg.update_critic,
                    ["returns"],
                    (critic.ppo_mini_batch_size, critic.ppo_epochs, critic.loss_agg_mode, 0),
                )

    def update_actor(self, batch: StepBatch) -> None:
        """One optimizer step of the policy per mini-batch."""
        if self.global_step > self.config.trainer.critic_warmup:
            actor = self.config.actor_rollout_ref.actor
            with timed(self.metrics, "update_actor"):
                self._update(
                    batch,
                    self.actor_rollout_wg.update_actor,
                    ["advantages"],
                    (actor.ppo_mini_batch_size, actor.ppo_epochs, actor.loss_agg_mode, actor.loss_scale_factor),
                )

    def measure(self, batch: StepBatch) -> None:
        """The driver's own numbers of the batch."""
        self.metrics |= data_metrics(self._lengths(batch.local), self.config.data.max_response_length)

    # ---- set-up ----

    def init_workers(self) -> None:
        """Create the pools, one fused worker class and group per pool, and load the models."""
        trainer, groups = self.config.trainer, {}
        self.resource_pool_manager.create_resource_pool()
        for name, roles in self.resource_pool_manager.roles_by_pool().items():
            pool = self.resource_pool_manager.resource_pool_dict[name]
            classes = {role.value: self._role_class(role) for role in roles}
            group = self.ray_worker_group_cls(
                resource_pool=pool,
                ray_cls_with_init=FusedWorker(classes),
                name_prefix=name,
                worker_env=engine_env(trainer.device, single_node=trainer.nnodes == 1),
                log_dir=str(self.run.resolve() / "logs"),
                timeout_s=trainer.timeout_s,
            )
            groups |= group.spawn(prefix_set=set(classes))
        # The engine sizes its cache by what is left, so the policy comes last.
        for role in sorted(groups, key=lambda name: name == Role.ActorRollout.value):
            self.progress({"kind": "stage", "text": f"loading {role}"})
            groups[role].init_model()
        self.actor_rollout_wg = groups[Role.ActorRollout.value]
        self.ref_policy_wg = groups.get(Role.RefPolicy.value, self.actor_rollout_wg)
        self.critic_wg = groups.get(Role.Critic.value)

    def _role_class(self, role: Role) -> RayClassWithInitArgs:
        optimizer_steps = self.total_steps * optimizer_steps_per_batch(self.config)
        policy, critic = self.config.actor_rollout_ref, self.config.critic
        policy.actor.optim.total_training_steps = critic.optim.total_training_steps = optimizer_steps
        arguments: dict[Role, dict[str, Any]] = {
            Role.ActorRollout: {"config": policy, "role": "actor_rollout"},
            Role.RefPolicy: {"config": policy, "role": "ref"},
            Role.Critic: {"config": critic},
            Role.RewardModel: {"config": self.config.reward.model},
        }
        return RayClassWithInitArgs(cls=self.role_worker_mapping[role], **arguments[role])

    def _kl_controller(self) -> FixedKLController | AdaptiveKLController:
        ctrl = self.config.algorithm.kl_ctrl
        if ctrl.type == "adaptive":
            return AdaptiveKLController(ctrl.kl_coef, ctrl.target_kl, ctrl.horizon)
        return FixedKLController(ctrl.kl_coef)

    def _tracking(self) -> Tracking:
        trainer = self.config.trainer
        return Tracking(
            self.run,
            trainer.logger,
            trainer.project_name,
            trainer.experiment_name,
            dataclasses.asdict(self.config),
            self.global_step,
        )

    # ---- parts of stages ----

    def _prompts(self, rows: Sequence[Row], names: Sequence[str], n: int, step: int | str) -> DataProto:
        collated = self.collate_fn(rows)
        uids = np.empty(len(rows), dtype=object)
        uids[:] = names
        prompts = DataProto.from_single_dict(collated | {"uid": uids}).repeat(n, interleave=True)
        seeds = row_seeds(self.config.trainer.seed, step, list(prompts.non_tensor_batch["uid"]))
        return prompts.union(DataProto.from_dict({"seeds": seeds}))

    def _generation_inputs(self, prompts: DataProto, sampling: SamplingConfig | None = None) -> DataProto:
        inputs = prompts.select(batch_keys=list(prompts.batch.keys()), non_tensor_batch_keys=["uid"])
        inputs.meta_info = {"sampling": sampling} if sampling else {}
        return inputs

    def _subtract_kl(self, batch: StepBatch) -> StepBatch:
        batch.fetch("old_log_probs", "ref_log_prob")
        tensors = dict(batch.local.batch.items())
        rewards, metrics = apply_kl_penalty(
            tensors["token_level_scores"],
            tensors["old_log_probs"],
            tensors["ref_log_prob"],
            tensors["response_mask"],
            self.kl_ctrl.value,
            self.config.algorithm.kl_penalty,
        )
        self.kl_ctrl.update(metrics["actor/reward_kl_penalty"], len(batch.local))
        self.metrics |= metrics
        batch.local = DataProto.from_dict(
            tensors | {"token_level_rewards": rewards}, batch.local.non_tensor_batch
        )
        return batch

    def _update(
        self,
        batch: StepBatch,
        method: Callable[[DataProtoFuture], DataProto],
        keys: list[str],
        plan: tuple[int, int, str, int],
    ) -> None:
        """Cut the batch, weigh the rows of each global mini-batch, call `method` once for each."""
        prompts, epochs, mode, constant = plan
        uids = list(batch.local.non_tensor_batch["uid"])
        collected: dict[str, list[float]] = {}
        seed = (self.config.trainer.seed, self.global_step)
        for rows in mini_batch_rows(uids, prompts, epochs, seed):
            whole = len(rows) == len(uids)
            part = batch if whole else StepBatch(batch.remote[rows], batch.local[rows])
            weights = loss_weights(
                part.local.batch["response_mask"],
                mode,
                norm_constant=constant or None,
                prompt_index=part.local.non_tensor_batch["uid"],
            )
            made = StepBatch(part.remote, part.local.union(DataProto.from_dict({"row_weights": weights})))
            made.remote = made.remote.drop(["response_mask"])
            data = made.send("response_mask", "row_weights", *keys, columns=["uid"])
            data.meta_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
            for key, values in method(data).meta_info["metrics"].items():
                collected.setdefault(key, []).extend(np.atleast_1d(values).tolist())
        self.metrics |= reduce_metrics(collected)

    def _lengths(self, local: DataProto) -> dict[str, torch.Tensor]:
        tensors = dict(local.batch.items())
        width = tensors["responses"].shape[1]
        tensors["response_lengths"] = tensors["attention_mask"][:, -width:].sum(1)
        tensors["prompt_lengths"] = tensors["attention_mask"][:, :-width].sum(1)
        return tensors

    # ---- around a step ----

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count and time one step."""
        self.global_step += 1
        self.metrics = {"training/global_step": float(self.global_step)}
        with timed(self.metrics, "step"):
            yield
        self.metrics["training/epoch"] = self.stream.position / self.stream.size

    def finish_step(self) -> None:
        """Log, and validate and save where due."""
        step, trainer = self.global_step, self.config.trainer
        self._throughput()
        last = step == self.total_steps
        if self.val_dataset is not None and (last or due(step, trainer.test_freq)):
            self.validate()
        if last or due(step, trainer.save_freq):
            with timed(self.metrics, "save_checkpoint"):
                self.save_checkpoint()
        self.tracking.log(self.metrics, step)
        self.progress({"kind": "step", "step": step, "total": self.total_steps, "metrics": self.metrics})

    def _throughput(self) -> None:
        metrics, seconds = self.metrics, self.metrics["timing_s/step"]
        self.training_seconds += seconds
        rows = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        tokens = rows * (metrics["response_length/mean"] + metrics["prompt_length/mean"])
        metrics["perf/total_num_tokens"] = tokens
        metrics["perf/throughput"] = tokens / seconds

    def validate(self) -> None:
        """Score the held-out prompts with fixed seeds, keep the samples, report."""
        if self.val_dataset is None or not len(self.val_dataset):
            return
        self.progress({"kind": "stage", "text": f"validating, step {self.global_step}"})
        sampling = self.config.actor_rollout_ref.rollout.val
        with timed(self.metrics, "testing"):
            rows = [self.val_dataset[i] for i in range(len(self.val_dataset))]
            names = [f"val-{i}" for i in range(len(rows))]
            prompts = self._prompts(rows, names, self.config.trainer.val_n, "val")
            remote = self.actor_rollout_wg.generate_sequences(self._generation_inputs(prompts, sampling))
            batch = StepBatch(remote, prompts.select(non_tensor_batch_keys=list(prompts.non_tensor_batch)))
            batch.fetch("responses", "response_mask", "attention_mask")
            scores = self.val_reward_fn(batch.local).scores
        columns = batch.local.non_tensor_batch
        metrics = validation_metrics(list(columns["data_source"]), list(columns["uid"]), scores)
        self._keep_samples(batch.local, scores)
        self.metrics |= metrics
        self.validations[self.global_step] = headline(metrics)
        self.progress({"kind": "validation", "step": self.global_step, "metrics": metrics})
        if self.global_step == 0:
            self.tracking.log(metrics, 0)

    def _keep_samples(self, local: DataProto, scores: torch.Tensor) -> None:
        width = local.batch["responses"].shape[1]
        lengths = local.batch["attention_mask"][:, -width:].sum(1).tolist()
        texts = [
            self.tokenizer.decode(ids[:length], skip_special_tokens=True)
            for ids, length in zip(local.batch["responses"].tolist(), lengths, strict=True)
        ]
        prompts = local.non_tensor_batch["raw_prompt"]
        rows = [
            {"step": self.global_step, "prompt": prompt, "response": text, "score": score}
            for prompt, text, score in zip(prompts, texts, scores.tolist(), strict=True)
        ]
        write_samples(self.run / "generations" / f"step_{self.global_step}.jsonl", rows)

    # ---- save and resume ----

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
        self.progress({"kind": "stage", "text": f"resuming from {folder.name}"})
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
            "saved_at": time.time(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the driver's part of a checkpoint."""
        self.global_step = state["global_step"]
        self.stream.load_state_dict(state["stream"])
        self.kl_ctrl.load_state_dict(state["kl_ctrl"])
        self.validations = {int(step): value for step, value in state["validations"].items()}
        self.training_seconds = state["training_seconds"]

    def finish(self) -> FitResult:
        """Export the model and close the trackers."""
        export = ""
        if self.config.trainer.export_at_end:
            export = str(self.run / "export")
            self.progress({"kind": "stage", "text": "exporting the model"})
            self.actor_rollout_wg.export_hf(str(Path(export).resolve()))
        self.tracking.close()
        steps = sorted(self.validations)
        before = self.validations[steps[0]] if steps and steps[0] == 0 else math.nan
        after = self.validations[steps[-1]] if steps else math.nan
        return FitResult(self.global_step, before, after, self.training_seconds, export)


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens now; never where `every` is not positive."""
    return every > 0 and step % every == 0
