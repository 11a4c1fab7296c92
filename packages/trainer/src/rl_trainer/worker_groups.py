"""From roles to running worker groups: a fused worker class per pool, a group per role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_controller import FusedWorker, RayClassWithInitArgs, RayWorkerGroup, WorkerGroup
from rl_rollout import engine_env

from .config import PPOConfig
from .plan import optimizer_steps_per_batch
from .roles import ResourcePoolManager, Role


def spawn_groups(
    config: PPOConfig,
    role_worker_mapping: Mapping[Role, type],
    manager: ResourcePoolManager,
    group_class: type[RayWorkerGroup],
    total_steps: int,
) -> dict[Role, WorkerGroup]:
    """Start the processes of every pool.

    Returns:
        One group per role; roles of one pool share its processes.
    """
    trainer = config.trainer
    steps = max(1, total_steps * optimizer_steps_per_batch(config))
    config.actor_rollout_ref.actor.optim.total_training_steps = steps
    config.critic.optim.total_training_steps = steps
    groups: dict[Role, WorkerGroup] = {}
    manager.create_resource_pool()
    for name, roles in manager.roles_by_pool().items():
        classes = {
            role.value: RayClassWithInitArgs(cls=role_worker_mapping[role], **role_arguments(config, role))
            for role in roles
        }
        group = group_class(
            resource_pool=manager.resource_pool_dict[name],
            ray_cls_with_init=FusedWorker(classes),
            name_prefix=name,
            worker_env=engine_env(trainer.device, single_node=trainer.nnodes == 1),
            log_dir=str(Path(trainer.default_local_dir).resolve() / "logs"),
            timeout_s=trainer.timeout_s,
        )
        spawned = group.spawn(prefix_set=set(classes))
        groups |= {role: spawned[role.value] for role in roles}
    return groups


def role_arguments(config: PPOConfig, role: Role) -> dict[str, Any]:
    """What a role's worker class is built with."""
    policy = config.actor_rollout_ref
    arguments: dict[Role, dict[str, Any]] = {
        Role.ActorRollout: {"config": policy, "role": "actor_rollout"},
        Role.RefPolicy: {"config": policy, "role": "ref"},
        Role.Critic: {"config": config.critic},
        Role.RewardModel: {"config": config.reward.model},
    }
    return arguments[role]
