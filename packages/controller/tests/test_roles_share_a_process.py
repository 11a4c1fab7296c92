from __future__ import annotations

import warnings
from typing import Any

import pytest
from lab_workers import Lab, Quiet, Run

from rl_controller import (
    DispatchError,
    FusedWorker,
    LocalWorkerGroup,
    RayClassWithInitArgs,
    RayWorkerGroup,
    UnknownRoleError,
    Worker,
    create_colocated_worker_cls,
    register,
)


def lab_and_quiet() -> FusedWorker:
    return FusedWorker({"lab": RayClassWithInitArgs(Lab, base=5), "quiet": RayClassWithInitArgs(Quiet)})


@pytest.fixture(scope="module", params=["local", "ray"])
def fused(request: pytest.FixtureRequest) -> Any:
    if request.param == "local":
        yield LocalWorkerGroup(lab_and_quiet())
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
    else:
        group = RayWorkerGroup(request.getfixturevalue("pool"), lab_and_quiet())
        yield group
        group.shutdown()


def test_roles_are_groups_with_their_own_names(fused: Any) -> None:
    size = fused.world_size
    groups = fused.spawn({"lab", "quiet"})
    assert groups["lab"].place() == fused.lab_place() and groups["quiet"].rest() == ["rest"] * size
    assert groups["lab"].execute_all_sync("add", 1) == [6 + rank for rank in range(size)]
    fused.fuse(["quiet"])
    assert fused.quiet.rest() == ["rest"] * size
    with pytest.raises(UnknownRoleError, match=r"\['boss'\]; it plays \['lab', 'quiet'\]"):
        fused.spawn({"boss"})


def test_roles_share_one_process_group(fused: Any) -> None:
    groups = fused.spawn(["lab", "quiet"])
    total = sum(range(1, fused.world_size + 1))
    assert groups["lab"].all_reduce() == [total] * fused.world_size
    assert groups["quiet"].group_rank() == list(range(fused.world_size))


def test_one_prefix_inside_another_binds_nothing_wrong() -> None:
    members = {"actor": RayClassWithInitArgs(Quiet), "actor_rollout": RayClassWithInitArgs(Run)}
    groups = LocalWorkerGroup(FusedWorker(members)).spawn({"actor", "actor_rollout"})
    assert groups["actor_rollout"].run() == ["run 0"]
    assert not hasattr(groups["actor"], "rollout_run") and groups["actor"].method_names == [
        "group_rank",
        "rest",
    ]


def test_names_that_collide_are_refused() -> None:
    class Rollout(Worker):
        @register()
        def rollout_run(self) -> None: ...

    with pytest.raises(DispatchError, match="'actor_rollout_run'"):
        FusedWorker({"actor": RayClassWithInitArgs(Rollout), "actor_rollout": RayClassWithInitArgs(Run)})
    with pytest.raises(DispatchError, match="at least one role"):
        FusedWorker({})


def test_a_method_named_like_the_groups_own_is_refused() -> None:
    class Spawner(Worker):
        @register()
        def spawn(self) -> None: ...

    with pytest.raises(DispatchError, match="'spawn' has the name"):
        LocalWorkerGroup(RayClassWithInitArgs(Spawner))


def test_an_override_keeps_the_registration() -> None:
    class Louder(Run):
        def run(self) -> str:
            return super().run().upper()

    assert LocalWorkerGroup(RayClassWithInitArgs(Louder)).run() == ["RUN 0"]


def test_the_deprecated_name_gives_a_ray_class_with_prefixed_methods() -> None:
    with pytest.warns(DeprecationWarning, match="FusedWorker"):
        made = create_colocated_worker_cls(
            {"lab": RayClassWithInitArgs(Lab), "quiet": RayClassWithInitArgs(Quiet)}
        )
    assert isinstance(made, RayClassWithInitArgs)
    actor_class = made.cls.__ray_actor_class__
    assert issubclass(actor_class, Worker)
    assert callable(actor_class.lab_identity) and callable(actor_class.quiet_rest)


def test_a_spawned_group_keeps_the_workers_alive(pool: Any) -> None:
    def only_one_role() -> RayWorkerGroup:
        parent = RayWorkerGroup(pool, lab_and_quiet())
        role: RayWorkerGroup = parent.spawn({"quiet"})["quiet"]
        return role

    import gc

    role = only_one_role()
    gc.collect()
    assert role.rest() == ["rest", "rest"] and role.alive() == [True, True]
    role.shutdown()


def test_fused_roles_take_custom_resources() -> None:
    member = RayClassWithInitArgs(Lab)
    member.set_additional_resource({"x": 1})
    assert FusedWorker({"lab": member}).resources == {"x": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert create_colocated_worker_cls({"lab": member}).resources == {"x": 1}
