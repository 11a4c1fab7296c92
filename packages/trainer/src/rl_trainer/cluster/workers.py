"""From roles to running processes: a fused worker class per pool, a group per role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rl_controller import (
    FusedWorker,
    LocalWorkerGroup,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    WorkerGroup,
)
from rl_rollout import engine_env

from ..config.steps import set_schedules
from ..config.tree import PPOConfig
from ..reward.worker import RewardFn, RewardWorker
from .roles import ResourcePoolManager, Role


class Workers:
    """The worker processes of a run.

    Args:
        config: the whole tree, resolved.
        classes: worker class of each role.
        manager: pools, and which role runs where.
        group_class: `RayWorkerGroup`, or `LocalWorkerGroup` for one worker in this process.
        reward_fns: score responses of training and of validation, in the policy's processes.
    """

    def __init__(
        self,
        config: PPOConfig,
        classes: Mapping[Role, type],
        manager: ResourcePoolManager,
        group_class: type[WorkerGroup],
        reward_fns: tuple[RewardFn, RewardFn],
    ) -> None:
        self.config, self.manager, self.group_class = config, manager, group_class
        self.classes = {**classes, Role.RuleReward: RewardWorker}
        self.policy = Role.ActorRollout if Role.ActorRollout in classes else Role.Actor
        self.reward_fns = reward_fns
        self.groups: dict[Role, WorkerGroup] = {}
        self.started: list[WorkerGroup] = []

    def start(self, total_steps: int, loading: Callable[[str], None]) -> dict[Role, WorkerGroup]:
        """Start the processes of every pool and load the models; calls `loading` with the name of each.

        Returns:
            One group per role; roles of one pool share its processes.
        """
        set_schedules(self.config, total_steps)
        # Rewards are computed where the rows are trained on: engines of their own may be busy sampling.
        pools = self.manager.mapping
        pools.setdefault(Role.RuleReward, pools[self.policy])
        self.manager.create_resource_pool()
        for name, roles in self.manager.roles_by_pool().items():
            fused = FusedWorker({role.value: self._class_of(role) for role in roles})
            group = self._start_pool(name, self.manager.resource_pool_dict[name], fused)
            self.started.append(group)
            spawned = group.spawn(prefix_set={role.value for role in roles})
            self.groups |= {role: spawned[role.value] for role in roles}
        # An engine sizes its cache by the memory that is left, so the policy comes last.
        for role in sorted(self.groups, key=lambda role: role in (Role.ActorRollout, Role.Rollout)):
            if role is not Role.RuleReward:
                loading(role.value)
            self.groups[role].init_model()
        return self.groups

    def shutdown(self) -> None:
        """End the processes and what they started, and give their pools back to the cluster."""
        rewards = self.groups.get(Role.RuleReward)
        if isinstance(rewards, LocalWorkerGroup):
            rewards.close()  # elsewhere the reward processes end with the workers
        for group in self.started:
            group.shutdown()
        for pool in self.manager.resource_pool_dict.values():
            pool.release()

    def _start_pool(self, name: str, pool: RayResourcePool, worker: FusedWorker) -> WorkerGroup:
        trainer = self.config.trainer
        if not issubclass(self.group_class, RayWorkerGroup):
            return LocalWorkerGroup(worker)
        return self.group_class(
            resource_pool=pool,
            ray_cls_with_init=worker,
            name_prefix=name,
            worker_env=engine_env(trainer.device, single_node=trainer.nnodes == 1),
            log_dir=str(Path(trainer.default_local_dir).resolve() / "logs"),
            timeout_s=trainer.timeout_s,
        )

    def _class_of(self, role: Role) -> RayClassWithInitArgs:
        """A role's worker class and what it is built with."""
        config = self.config
        arguments: dict[Role, dict[str, Any]] = {
            Role.Critic: {"config": config.critic},
            Role.RewardModel: {"config": config.reward.model},
            Role.RuleReward: dict(zip(("reward_fn", "val_reward_fn"), self.reward_fns, strict=True)),
        }
        policy = {"config": config.actor_rollout_ref, "role": role.value}
        return RayClassWithInitArgs(cls=self.classes[role], **arguments.get(role, policy))
