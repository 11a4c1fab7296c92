"""The driver program as a Ray actor: it owns the trainer and the data."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from rl_controller import LocalWorkerGroup, RayWorkerGroup
from rl_workers import (
    ActorRolloutRefWorker,
    CriticWorker,
    RewardModelWorker,
    RolloutServiceWorker,
    load_tokenizer,
)

from ..cluster.roles import ResourcePoolManager, Role
from ..config.inputs import needs, uses_reference
from ..config.tree import PPOConfig, RewardConfig
from ..data.dataset import PromptDataset
from ..errors import DataError
from ..loop.ray_trainer import RayPPOTrainer
from ..plan.resolve import import_user_modules
from ..reward.manager import NoRule, RewardManager
from ..reward.several import WeightedRewards, rule_names
from ..reward.worker import RewardFn
from ..state.run_state import FitResult
from ..view.recorder import Event

OURS = ("rl_algos", "rl_controller", "rl_protocol", "rl_rollout", "rl_trainer", "rl_workers")


class TaskRunner:
    """Runs one training job; made remote by `run_ppo`.

    Override `add_roles` or `build_trainer` to train with other workers or another loop.
    """

    trainer_class: type[RayPPOTrainer] = RayPPOTrainer
    trains = True  # whether this job goes on from a run's state and changes it

    def __init__(self, listener: Callable[[Event], None] | None = None) -> None:
        """Args: listener: gets each event at once; None: they wait for `next_events`."""
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.progress = listener or self.events.put

    def run(self, config: PPOConfig) -> FitResult:
        """Build everything, train, clean up."""
        run = Path(config.trainer.default_local_dir)
        with logging_to(run / "logs" / "driver.log"):
            return self._run(config)

    def _run(self, config: PPOConfig) -> FitResult:
        seed_everything(config.trainer.seed)
        import_user_modules(config)
        policy = config.actor_rollout_ref
        tokenizer = load_tokenizer(policy.model, policy.chat_template)
        trainer = self.build_trainer(config, tokenizer, build_reward(config.reward, tokenizer))
        try:
            self.progress({"kind": "stage", "text": "starting worker processes"})
            trainer.init_workers()
            return self.work(trainer)
        finally:
            trainer.shutdown()

    def work(self, trainer: RayPPOTrainer) -> FitResult:
        """What is done with the trainer once its workers are up."""
        return trainer.fit()

    def build_trainer(
        self, config: PPOConfig, tokenizer: PreTrainedTokenizerBase, reward_fn: RewardFn
    ) -> RayPPOTrainer:
        """The trainer with its data, roles and pools."""
        self.progress({"kind": "stage", "text": "reading prompts"})
        data, seed = config.data, config.trainer.seed
        train = PromptDataset(data.train_files, tokenizer, data, data.train_split, seed)
        if self.trains and len(train) < data.train_batch_size:
            raise DataError(
                f"data.train_batch_size={data.train_batch_size}, but there are {len(train)} prompts: some "
                "would stand several times in one batch; lower it, or raise rollout.n instead"
            )
        val = None
        if data.val_files:
            # One more than the training seed: other rows of the same reasoning-gym task.
            val = PromptDataset(data.val_files, tokenizer, data, data.val_split, seed + 1)
        roles = self.add_roles(config)
        trainer = config.trainer
        pools = {"global_pool": [trainer.n_workers_per_node] * trainer.nnodes}
        if Role.Rollout in roles:
            pools["rollout_pool"] = [trainer.n_rollout_workers_per_node] * trainer.nnodes
        mapping = {role: "rollout_pool" if role is Role.Rollout else "global_pool" for role in roles}
        manager = ResourcePoolManager(pools, mapping, use_gpu=trainer.device == "cuda")
        return self.trainer_class(
            config=config,
            tokenizer=tokenizer,
            role_worker_mapping=roles,
            resource_pool_manager=manager,
            ray_worker_group_cls=RayWorkerGroup if config.trainer.backend == "ray" else LocalWorkerGroup,
            reward_fn=reward_fn,
            train_dataset=train,
            val_dataset=val,
            progress=self.progress,
        )

    def add_roles(self, config: PPOConfig) -> dict[Role, type]:
        """The worker class of each role that this configuration uses."""
        roles: dict[Role, type] = {Role.ActorRollout: ActorRolloutRefWorker}
        if config.trainer.n_rollout_workers_per_node:
            apart = RolloutServiceWorker if config.trainer.mode == "async" else ActorRolloutRefWorker
            roles = {Role.Actor: ActorRolloutRefWorker, Role.Rollout: apart}
        policy = config.actor_rollout_ref
        if uses_reference(config) and not policy.model.lora_rank:
            roles[Role.RefPolicy] = ActorRolloutRefWorker  # with adapters the policy is its own reference
        if needs(config, "values"):
            roles[Role.Critic] = CriticWorker
        if config.reward.model_enable:
            roles[Role.RewardModel] = RewardModelWorker
        return roles

    def next_events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` for the first."""
        found: list[Event] = []
        try:
            found.append(self.events.get(timeout=timeout_s))
            while True:
                found.append(self.events.get_nowait())
        except queue.Empty:
            return found


def build_reward(config: RewardConfig, tokenizer: PreTrainedTokenizerBase) -> RewardFn:
    """The rule rewards of a run, as one function of a batch."""
    managers = {
        name: RewardManager(function, tokenizer, config.timeout_s, config.num_processes)
        for name, function in zip(rule_names(config.rules), config.rules, strict=True)
    }
    if config.functions:
        return WeightedRewards(managers, config.weights or [1.0] * len(managers))
    return next(iter(managers.values()), NoRule())


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send this process's log records and warnings to a file; the terminal belongs to the display."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler, root = logging.FileHandler(path), logging.getLogger()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.INFO)
    root.addHandler(handler)
    levels = {name: logging.getLogger(name).level for name in OURS}
    for name in OURS:
        logging.getLogger(name).setLevel(logging.INFO)  # the root stays at WARNING: other libraries chat
    logging.captureWarnings(True)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        root.removeHandler(handler)
        handler.close()


def seed_everything(seed: int) -> None:
    """Seed the driver's global generators, for user code that draws from them; ours derive their seeds."""
    np.random.seed(seed)
    torch.manual_seed(seed)
