"""A Ray single controller: worker groups, resource pools, fused workers."""

from rl_controller.decorator import MAGIC_ATTR, Execute, Registration, register
from rl_controller.dispatch import (
    Dispatch,
    DispatchMode,
    make_nd_compute_dataproto_dispatch_fn,
    register_dispatch_mode,
)
from rl_controller.errors import (
    CallError,
    CallTimeoutError,
    DispatchError,
    ObjectLostError,
    PlacementTimeoutError,
    PoolError,
    RendezvousError,
    RLControllerError,
    UnknownMethodError,
    UnknownRoleError,
    WorkerDiedError,
    WorkerMethodError,
    WorkerStateError,
)
from rl_controller.fused_worker import FusedWorker, create_colocated_worker_cls
from rl_controller.init_args import ClassWithInitArgs, RayClassWithInitArgs
from rl_controller.local_worker_group import LocalWorkerGroup
from rl_controller.rank_info import RankInfo
from rl_controller.ray_worker_group import RayWorkerGroup
from rl_controller.resource_pool import (
    RayResourcePool,
    ResourcePool,
    SubResourcePool,
    merge_resource_pool,
    split_resource_pool,
)
from rl_controller.worker import Worker, WorkerHelper
from rl_controller.worker_group import WorkerGroup

__version__ = "0.1.0"

__all__ = [
    "MAGIC_ATTR",
    "CallError",
    "CallTimeoutError",
    "ClassWithInitArgs",
    "Dispatch",
    "DispatchError",
    "DispatchMode",
    "Execute",
    "FusedWorker",
    "LocalWorkerGroup",
    "ObjectLostError",
    "PlacementTimeoutError",
    "PoolError",
    "RLControllerError",
    "RankInfo",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayWorkerGroup",
    "Registration",
    "RendezvousError",
    "ResourcePool",
    "SubResourcePool",
    "UnknownMethodError",
    "UnknownRoleError",
    "Worker",
    "WorkerDiedError",
    "WorkerGroup",
    "WorkerHelper",
    "WorkerMethodError",
    "WorkerStateError",
    "create_colocated_worker_cls",
    "make_nd_compute_dataproto_dispatch_fn",
    "merge_resource_pool",
    "register",
    "register_dispatch_mode",
    "split_resource_pool",
]
