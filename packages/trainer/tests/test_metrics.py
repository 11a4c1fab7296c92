"""How a step's numbers are reduced and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rl_protocol import DataProto, DataProtoFuture, LocalStore
from rl_trainer.errors import ConfigError
from rl_trainer.loop.advantages import of_rows
from rl_trainer.loop.metrics import data_metrics, explained_variance, reduce_metrics
from rl_trainer.loop.step_batch import StepBatch
from rl_trainer.loop.validation import headline, validation_metrics
from rl_trainer.view.tracking import MetricsFile, check_trackers


def rows_on_workers(**columns: torch.Tensor) -> StepBatch:
    data = DataProto.from_dict(columns, {"uid": list("abc")})
    return StepBatch(DataProtoFuture.from_data(data, LocalStore()), data.select(batch_keys=[]), data)


def test_only_the_last_path_segment_declares_a_reduction() -> None:
    entries = {
        "env/terminated": [0, 1],
        "x/minmax_diff": [2, 4],
        "y/max": [1, 3],
        "z/max": [],
        "w/sum": [1, 2],
    }
    assert reduce_metrics(entries) == {"env/terminated": 0.5, "x/minmax_diff": 3, "y/max": 3, "w/sum": 3}


def test_masked_positions_and_rows_count_in_no_statistic() -> None:
    nan = float("nan")
    batch = rows_on_workers(
        response_mask=torch.tensor([[1, 1], [1, 0], [0, 0]]),
        num_actions=torch.tensor([2, 1, 0]),
        response_lengths=torch.tensor([2, 1, 2]),
        prompt_lengths=torch.tensor([4, 4, 5]),
    )
    batch.put(
        scores=torch.tensor([1.0, 3.0, nan]),
        token_level_rewards=torch.tensor([[0.0, 1.0], [2.0, nan], [nan, nan]]),
        advantages=torch.tensor([[1.0, 1.0], [-1.0, nan], [nan, nan]]),
        returns=torch.tensor([1.0, -1.0, nan]),
    )
    metrics = data_metrics(batch, max_response_length=2)
    assert metrics["critic/score/mean"] == 2.0 and metrics["critic/rewards/mean"] == 1.5
    for column in ("advantages", "returns"):  # one per token, one per row
        assert metrics[f"critic/{column}/mean"] == pytest.approx(1 / 3)
    assert metrics["response_length/clip_ratio"] == pytest.approx(2 / 3)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_where_nothing_varies() -> None:
    returns = torch.tensor([1.0, 2.0, 4.0])
    assert explained_variance(returns + 5, returns) == 1.0
    assert explained_variance(returns, torch.ones(3)) == 0.0


def test_validation_is_per_source_and_counts_a_row_without_value_as_wrong() -> None:
    columns = ("source", "uid", "greedy", "response", "score")
    table = [
        ("a", "p", True, "1", 1.0),
        ("a", "p", False, "1", 1.0),
        ("a", "p", False, "2", 0.0),
        ("a", "q", True, "3", float("nan")),
        ("a", "q", False, "3", float("nan")),
        ("a", "q", False, "3", 0.0),
        ("b", "r", True, "4", 1.0),
    ]
    metrics = validation_metrics([dict(zip(columns, row, strict=True)) for row in table])
    assert metrics == {
        "val-core/a/reward/greedy": 0.5,
        "val-core/a/reward/mean@2": 0.25,
        "val-core/a/reward/pass@2": 0.5,
        "val-core/a/reward/maj@2": 0.25,
        "val-core/b/reward/greedy": 1.0,
    }
    assert headline(metrics) == 0.25
    assert headline({"val-core/b/reward/greedy": 1.0}) == 1.0


def test_a_resumed_file_holds_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, resume_step=0)
    for step in (1, 2, 3):
        first.log({"x": step}, step)
    with path.open("a") as file:
        file.write('{"step": 4, "x"')  # the process died while writing
    second = MetricsFile(path, resume_step=2)
    second.log({"x": 30}, 3)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "x": 1},
        {"step": 2, "x": 2},
        {"step": 3, "x": 30},
    ]


def test_an_unknown_tracker_is_named() -> None:
    with pytest.raises(ConfigError, match="tensorboard, wandb"):
        check_trackers(["mlflow"])


def test_a_datasets_own_index_column_does_not_group_responses() -> None:
    data = DataProto.from_dict({}, {"uid": list("aabb"), "index": list("wxyz")})
    batch = StepBatch(DataProtoFuture.from_data(data, LocalStore()), data, data)
    assert of_rows(batch, "index") == list("aabb")
    assert of_rows(batch, "anchor_state") == list("aabb")
    assert of_rows(batch, "trajectory_index") == [0, 1, 2, 3]
