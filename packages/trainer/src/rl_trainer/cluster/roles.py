"""Which role runs on which pool of worker processes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import Enum

from rl_controller import RayResourcePool

from ..errors import ConfigError


class Role(Enum):
    """What a worker does in the training loop; the value is its name in a fused worker."""

    ActorRollout = "actor_rollout"
    Actor = "actor"
    Rollout = "rollout"
    RefPolicy = "ref"
    Critic = "critic"
    RewardModel = "reward"
    RuleReward = "rule_reward"


@dataclass
class ResourcePoolManager:
    """Names pools and says which role lives in which.

    Args:
        resource_pool_spec: pool name to worker processes per node, e.g. `{"global_pool": [8, 8]}`.
        mapping: role to pool name. Roles that share a pool share its processes.
        use_gpu: whether a worker holds a GPU; None: what the cluster has.
    """

    resource_pool_spec: dict[str, list[int]]
    mapping: dict[Role, str]
    use_gpu: bool | None = None
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)

    def create_resource_pool(self) -> None:
        """Build the pools that don't exist yet; the cluster grants them when a group is placed."""
        for name, processes in self.resource_pool_spec.items():
            if name not in self.resource_pool_dict:
                # Unique in the cluster, where another job may have pools of the same names.
                prefix = f"{name}_{uuid.uuid4().hex[:8]}"
                self.resource_pool_dict[name] = RayResourcePool(
                    process_on_nodes=processes, use_gpu=self.use_gpu, name_prefix=prefix
                )

    def get_resource_pool(self, role: Role) -> RayResourcePool:
        """The pool of a role.

        Raises:
            ConfigError: the role has no pool, or a pool that was not specified.
        """
        name = self.mapping.get(role)
        if name is None or name not in self.resource_pool_spec:
            pools = ", ".join(self.resource_pool_spec) or "none"
            raise ConfigError(f"role {role.value!r} is mapped to pool {name!r}; pools that exist: {pools}")
        self.create_resource_pool()
        return self.resource_pool_dict[name]

    def roles_by_pool(self) -> dict[str, list[Role]]:
        """Roles that share each pool, in the order in which they were mapped."""
        shared: dict[str, list[Role]] = {}
        for role, name in self.mapping.items():
            shared.setdefault(name, []).append(role)
        return shared
