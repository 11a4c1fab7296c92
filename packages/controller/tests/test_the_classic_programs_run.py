from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rl_controller import FusedWorker, LocalWorkerGroup
from rl_protocol import DataProto

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name: str) -> ModuleType:
    """An example as a program would be: its classes travel to the workers by value."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    return module


def test_each_worker_computes_the_loss_on_its_half(cluster: None) -> None:
    losses = example("my_net_worker").main()
    assert losses.batch["rank"].tolist() == [0] * 5 + [1] * 5
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    with torch.no_grad():
        expected = (net(torch.ones(10, 3)).squeeze(-1) - torch.arange(10.0)).square()
    assert torch.allclose(losses.batch["loss"], expected)


def test_four_workers_add(cluster: None) -> None:
    assert example("four_adders").main() == [12, 13, 14, 15]


def test_actor_and_critic_share_processes_and_not_data(cluster: None) -> None:
    with pytest.warns(DeprecationWarning, match="FusedWorker"):
        results = example("colocated_actor_critic").main()
    for added, subtracted, given in results:
        assert added == [0.0] * 5 + [1.0] * 5 and subtracted == [-10.0] * 10 and given == [0.0] * 10


def test_the_same_roles_in_process() -> None:
    spawned = LocalWorkerGroup(FusedWorker(example("colocated_actor_critic").roles())).spawn(
        {"actor", "critic"}
    )
    data = DataProto.from_dict({"a": torch.zeros(10)})
    assert spawned["actor"].add(data).batch["a"].tolist() == [0.0] * 10
    assert spawned["critic"].sub(data).batch["a"].tolist() == [-10.0] * 10
    assert data.batch["a"].tolist() == [0.0] * 10
