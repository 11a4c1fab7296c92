"""From roles to running worker groups: a fused worker class per pool, a group per role."""

from __future__ import annotations

from collections.abc import Mapping
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

from .config import PPOConfig
from .plan import optimizer_steps_per_batch
from .roles import ResourcePoolManager, Role


def spawn_groups(
    config: PPOConfig,
    role_worker_mapping: Mapping[Role, type],
    manager: ResourcePoolManager,
    group_class: type[WorkerGroup],
    total_steps: int,
    started: list[WorkerGroup],
    reward_fns: tuple[Any, Any],
) -> dict[Role, WorkerGroup]:
    """Start the processes of every pool; each group of processes is added to `started` for `shutdown`.

    Returns:
        One group per role; roles of one pool share its processes.
    """
    steps = max(1, total_steps * optimizer_steps_per_batch(config))
    config.actor_rollout_ref.actor.optim.total_training_steps = steps
    config.critic.optim.total_training_steps = steps
    groups: dict[Role, WorkerGroup] = {}
    manager.create_resource_pool()
    for name, roles in manager.roles_by_pool().items():
        arguments = {role: role_arguments(config, role, reward_fns) for role in roles}
        classes = {
            role.value: RayClassWithInitArgs(cls=role_worker_mapping[role], **arguments[role])
            for role in roles
        }
        pool = manager.resource_pool_dict[name]
        group = start_group(config, name, pool, FusedWorker(classes), group_class)
        started.append(group)
        spawned = group.spawn(prefix_set=set(classes))
        groups |= {role: spawned[role.value] for role in roles}
    return groups


def start_group(
    config: PPOConfig, name: str, pool: RayResourcePool, worker: FusedWorker, group_class: type[WorkerGroup]
) -> WorkerGroup:
    """The processes of one pool, or one worker in this process."""
    trainer = config.trainer
    if not issubclass(group_class, RayWorkerGroup):
        return LocalWorkerGroup(worker)
    return group_class(
        resource_pool=pool,
        ray_cls_with_init=worker,
        name_prefix=name,
        worker_env=engine_env(trainer.device, single_node=trainer.nnodes == 1),
        log_dir=str(Path(trainer.default_local_dir).resolve() / "logs"),
        timeout_s=trainer.timeout_s,
    )


def role_arguments(config: PPOConfig, role: Role, reward_fns: tuple[Any, Any]) -> dict[str, Any]:
    """What a role's worker class is built with."""
    policy = config.actor_rollout_ref
    arguments: dict[Role, dict[str, Any]] = {
        Role.ActorRollout: {"config": policy, "role": "actor_rollout"},
        Role.Actor: {"config": policy, "role": "actor"},
        Role.Rollout: {"config": policy, "role": "rollout"},
        Role.RefPolicy: {"config": policy, "role": "ref"},
        Role.Critic: {"config": config.critic},
        Role.RewardModel: {"config": config.reward.model},
        Role.RuleReward: dict(zip(("reward_fn", "val_reward_fn"), reward_fns, strict=True)),
    }
    return arguments[role]
