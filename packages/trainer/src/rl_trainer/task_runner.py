"""The driver program as a Ray actor: it owns the trainer, the data and the reward processes."""

from __future__ import annotations

import logging
import queue
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl_controller import RayWorkerGroup
from rl_workers import ActorRolloutRefWorker, CriticWorker

from .advantages import needs_values
from .config import PPOConfig
from .config_loading import to_yaml
from .dataset import PromptDataset
from .ray_trainer import Event, FitResult, RayPPOTrainer
from .reward import RewardManager
from .roles import ResourcePoolManager, Role


class TaskRunner:
    """Runs one training job; made remote by `main_ppo.run_ppo`.

    Override `add_roles` or `build_trainer` to train with other workers or another loop.
    """

    trainer_class: type[RayPPOTrainer] = RayPPOTrainer

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def run(self, config: PPOConfig) -> FitResult:
        """Build everything, train, clean up."""
        run = Path(config.trainer.default_local_dir)
        run.mkdir(parents=True, exist_ok=True)
        log_to_file(run / "logs" / "driver.log")
        (run / "config.yaml").write_text(to_yaml(config))
        seed_everything(config.trainer.seed)
        tokenizer = AutoTokenizer.from_pretrained(
            config.actor_rollout_ref.model.path,
            trust_remote_code=config.actor_rollout_ref.model.trust_remote_code,
        )
        reward = config.reward
        reward_fn = RewardManager(reward.function, tokenizer, reward.timeout_s, reward.num_processes)
        try:
            trainer = self.build_trainer(config, tokenizer, reward_fn)
            self.events.put({"kind": "stage", "text": "starting worker processes"})
            trainer.init_workers()
            return self.work(trainer)
        finally:
            reward_fn.close()

    def work(self, trainer: RayPPOTrainer) -> FitResult:
        """What is done with the trainer once its workers are up."""
        return trainer.fit()

    def build_trainer(
        self, config: PPOConfig, tokenizer: PreTrainedTokenizerBase, reward_fn: RewardManager
    ) -> RayPPOTrainer:
        """The trainer with its data, roles and pools."""
        self.events.put({"kind": "stage", "text": "reading prompts"})
        data, seed = config.data, config.trainer.seed
        train = PromptDataset(data.train_files, tokenizer, data, data.train_split, seed)
        val = None
        if data.val_files:
            # One more than the training seed: other rows of the same reasoning-gym task.
            val = PromptDataset(data.val_files, tokenizer, data, data.val_split, seed + 1)
        roles = self.add_roles(config)
        pool = [config.trainer.n_workers_per_node] * config.trainer.nnodes
        manager = ResourcePoolManager(
            {"global_pool": pool},
            dict.fromkeys(roles, "global_pool"),
            use_gpu=config.trainer.device == "cuda",
        )
        return self.trainer_class(
            config=config,
            tokenizer=tokenizer,
            role_worker_mapping=roles,
            resource_pool_manager=manager,
            ray_worker_group_cls=RayWorkerGroup,
            reward_fn=reward_fn,
            train_dataset=train,
            val_dataset=val,
            progress=self.events.put,
        )

    def add_roles(self, config: PPOConfig) -> dict[Role, type]:
        """The worker class of each role that this configuration uses."""
        roles: dict[Role, type] = {Role.ActorRollout: ActorRolloutRefWorker}
        if config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss:
            roles[Role.RefPolicy] = ActorRolloutRefWorker
        if needs_values(config.algorithm.adv_estimator):
            roles[Role.Critic] = CriticWorker
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


def log_to_file(path: Path) -> None:
    """Send this process's log records to a file; the terminal belongs to the display."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    logging.captureWarnings(True)


def seed_everything(seed: int) -> None:
    """Seed the driver's global generators, for user code that draws from them; ours derive their seeds."""
    np.random.seed(seed)
    torch.manual_seed(seed)
