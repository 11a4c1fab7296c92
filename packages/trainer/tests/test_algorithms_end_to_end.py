"""Every way to train, by configuration alone: the whole trainer in this process, with a real tiny model."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from rl_trainer import FitResult, TrainingError, load_config, run_ppo
from rl_trainer.errors import DataError
from rl_trainer.models.tiny import make_tiny_model
from rl_trainer.run.jobs import EvaluationRunner
from rl_trainer.tiny import tiny_overrides

ACTOR, ALGORITHM = "actor_rollout_ref.actor", "algorithm"
LOCAL = [
    "trainer.backend=local",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_mini_batch_size=4",
    "critic.ppo_mini_batch_size=4",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=false",
]


def train(folder: Path, config: str, *overrides: str) -> tuple[FitResult, list[dict[str, Any]]]:
    result = run_ppo(load_config(config, [*tiny_overrides(folder), *LOCAL, *overrides]))
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return result, [json.loads(line) for line in lines]


def trained(lines: list[dict[str, Any]]) -> bool:
    return all(math.isfinite(line["actor/grad_norm"]) for line in lines) and len(lines) == 2


@pytest.mark.parametrize(
    "estimator",
    [
        *("grpo", "dr_grpo", "grpo_passk", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
        *("remax", "opo", "gpg", "maxrl", "optimal_token_baseline", "tir_optimal_token_baseline"),
        "gigpo",
    ],
)
def test_an_estimator_is_chosen_by_one_key(tmp_path: Path, estimator: str) -> None:
    _, lines = train(tmp_path, "tiny_grpo", f"{ALGORITHM}.adv_estimator={estimator}")
    assert trained(lines)
    assert ("timing_s/gen_max" in lines[0]) == (estimator == "remax")


@pytest.mark.parametrize(
    "loss",
    [
        *("clip_higher", "gspo", "cispo", "sapo", "geo_mean", "gpg", "clip_cov", "kl_cov"),
        *("dppo_tv", "dppo_kl", "dro", "luspo", "topr", "vespo", "reinforce"),
    ],
)
def test_a_policy_loss_is_chosen_by_one_key(tmp_path: Path, loss: str) -> None:
    steps = [f"{ACTOR}.ppo_mini_batch_size=2", f"{ACTOR}.policy_loss.loss_mode={loss}"]
    _, lines = train(tmp_path, "tiny_grpo", *steps)
    assert trained(lines) and "timing_s/old_log_prob" in lines[0]


@pytest.mark.parametrize(
    "mode",
    ["token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "prompt-mean"],
)
def test_an_aggregation_is_chosen_by_one_key(tmp_path: Path, mode: str) -> None:
    constant = [f"{ACTOR}.loss_scale_factor=5"] if mode.endswith("norm") else []
    _, lines = train(tmp_path, "tiny_grpo", f"{ACTOR}.loss_agg_mode={mode}", *constant)
    assert trained(lines)


def test_ppo_warms_its_critic_up_first(tmp_path: Path) -> None:
    _, lines = train(tmp_path, "tiny_ppo", "trainer.critic_warmup=1")
    assert "actor/grad_norm" not in lines[0] and "actor/grad_norm" in lines[1]
    assert all(math.isfinite(line["critic/vf_loss"]) for line in lines)


def test_kl_in_reward_and_in_loss_start_at_zero_and_grow(tmp_path: Path) -> None:
    both = [
        f"{ALGORITHM}.use_kl_in_reward=true",
        f"{ACTOR}.use_kl_loss=true",
        f"{ALGORITHM}.kl_ctrl.type=adaptive",
    ]
    _, lines = train(tmp_path, "tiny_grpo", *both)
    assert abs(lines[0]["actor/reward_kl_penalty"]) < 1e-6 < abs(lines[1]["actor/reward_kl_penalty"])
    assert abs(lines[0]["actor/kl_loss"]) < 1e-6 < lines[1]["actor/kl_loss"]
    assert lines[1]["actor/reward_kl_penalty_coeff"] != lines[0]["actor/reward_kl_penalty_coeff"]


def test_dynamic_sampling_replaces_prompts_whose_responses_score_the_same(tmp_path: Path) -> None:
    _, lines = train(
        tmp_path, "tiny_grpo", f"{ALGORITHM}.filter_groups.enable=true", "actor_rollout_ref.rollout.n=2"
    )
    assert sum(line["train/filtered_prompts/sum"] for line in lines) > 0
    assert max(line["train/num_gen_batches"] for line in lines) > 1


def test_rollout_correction_weighs_and_rejects(tmp_path: Path) -> None:
    key = f"{ALGORITHM}.rollout_correction"
    half = ["actor_rollout_ref.rollout.dtype=bfloat16", f"{key}.rollout_is=token", f"{key}.rollout_rs=ratio"]
    _, lines = train(tmp_path, "tiny_grpo", *half, f"{key}.rollout_rs_upper=1.001")
    assert 0 < lines[0]["rollout_corr/rollout_rs_masked_fraction"] < 1
    assert lines[0]["rollout_corr/rollout_is_max"] > 1


def test_the_engines_log_probs_can_be_the_old_ones(tmp_path: Path) -> None:
    _, lines = train(tmp_path, "tiny_grpo", f"{ALGORITHM}.rollout_correction.bypass_mode=true")
    assert trained(lines) and lines[0]["actor/ppo_kl"] == pytest.approx(0, abs=1e-5)


def test_gdpo_takes_several_rewards(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    right = sum(a == b for a, b in zip(solution_str, ground_truth))\n"
        "    return {'score': right / 3, 'short': float(len(solution_str) < 4)}\n"
    )
    keys = [f"{ALGORITHM}.adv_estimator=gdpo", f"{ALGORITHM}.gdpo_reward_keys=[score,short]"]
    _, lines = train(tmp_path, "tiny_grpo", f"reward.function={file}:score", *keys)
    assert trained(lines) and 0 <= lines[0]["reward/short"] <= 1


def test_adapters_are_their_own_reference(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    lora = ["actor_rollout_ref.model.lora_rank=4", f"{ACTOR}.use_kl_loss=true"]
    result, lines = train(tmp_path, "tiny_grpo", *lora)
    assert trained(lines) and lines[1]["actor/kl_loss"] > 0
    assert (Path(result.export) / "config.json").is_file()


def test_a_reward_model_scores_alone_or_beside_a_rule(tmp_path: Path) -> None:
    policy = make_tiny_model(tmp_path / "policy")
    config = AutoConfig.from_pretrained(policy, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "classifier")
    model = ["reward.model_enable=true", f"reward.model.model.path={tmp_path / 'classifier'}"]
    model += ["reward.model.fsdp_config.compute_dtype=float32"]
    _, alone = train(tmp_path / "alone", "tiny_grpo", *model, "reward.function=''")
    _, both = train(tmp_path / "both", "tiny_grpo", *model)
    _, rule = train(tmp_path / "rule", "tiny_grpo")
    score = "critic/score/mean"
    assert alone[0][score] != 0
    assert both[0][score] == pytest.approx(alone[0][score] + rule[0][score], abs=1e-5)
    validated = "val-core/copy/reward/greedy"
    assert alone[-1][validated] != 0
    assert both[-1][validated] != pytest.approx(rule[-1][validated], abs=1e-7)


def test_overlong_responses_cost(tmp_path: Path) -> None:
    _, lines = train(tmp_path, "tiny_grpo", "reward.overlong_buffer_len=2")
    assert lines[0]["critic/score/min"] < 0


def test_an_agent_loop_takes_several_turns_in_one_row(tmp_path: Path) -> None:
    file = tmp_path / "two_turns.py"
    file.write_text(
        "from rl_rollout import AgentLoop\n"
        "class TwoTurns(AgentLoop):\n"
        "    async def run(self, transcript, row, engine):\n"
        "        transcript.add_generated(await engine.generate(transcript, row))\n"
        "        if transcript.add_observation([4]):\n"
        "            transcript.add_generated(await engine.generate(transcript, row))\n"
        "def make(config, tokenizer):\n"
        "    return TwoTurns()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        loop = ["actor_rollout_ref.rollout.agent_loop=two_turns:make", "data.max_response_length=8"]
        _, lines = train(tmp_path, "tiny_grpo", *loop)
    finally:
        sys.path.remove(str(tmp_path))
    assert trained(lines) and lines[0]["agent/failed_rows/sum"] == 0
    # A turn, an observation and a turn: one turn alone often ends after one token.
    assert all(line["response_length/min"] >= 3 for line in lines)


def test_a_run_whose_reward_fails_on_every_row_ends_at_once_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n    return undefined_name\n"
    )
    with pytest.raises(
        TrainingError, match=r"(\d+) of \1 rows have no reward \(raised.*first: it raised NameError"
    ):
        train(tmp_path, "tiny_grpo", f"reward.function={tmp_path / 'broken.py'}:score", "data.val_files=[]")


def test_rows_without_a_reward_are_told_of_the_first_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return 1 / solution_str.count(ground_truth[0])\n"
    )
    _, lines = train(
        tmp_path, "tiny_grpo", f"reward.function={tmp_path / 'some.py'}:score", "data.val_files=[]"
    )
    assert trained(lines) and all(0 < line["reward/raised/sum"] < 16 for line in lines)
    told = capsys.readouterr()
    assert (told.out + told.err).count("rows have no reward (raised") == 1


def test_dynamic_sampling_draws_whole_batches_past_the_last_epoch(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    overrides = tiny_overrides(tmp_path)
    few.write_text("".join((tmp_path / "train.jsonl").read_text().splitlines(True)[:8]))
    again = [*overrides, *LOCAL, f"data.train_files=[{few}]", "trainer.total_training_steps=-1"]
    sampling = [f"{ALGORITHM}.filter_groups.{key}" for key in ("enable=true", "max_num_gen_batches=3")]
    run_ppo(load_config("tiny_grpo", [*again, *sampling, "trainer.total_epochs=2", "data.val_files=[]"]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    drawn = 4 * sum(line["train/num_gen_batches"] for line in lines)
    assert lines[-1]["training/epoch"] * 8 == drawn > 2 * 8


def test_fewer_prompts_than_a_batch_are_refused_before_a_worker_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.train_batch_size=600, but there are 512 prompts"):
        train(tmp_path, "tiny_grpo", "data.train_batch_size=600", f"{ACTOR}.ppo_mini_batch_size=600")


def test_evaluation_leaves_what_the_run_has_written(tmp_path: Path) -> None:
    train(tmp_path, "tiny_grpo")
    run = tmp_path / "run"
    before = {path: path.read_bytes() for path in [run / "config.yaml", *run.glob("generations/*")]}
    config = load_config("tiny_grpo", [*tiny_overrides(tmp_path), *LOCAL, "trainer.project_name=other"])
    result = run_ppo(config, EvaluationRunner)
    assert {path: path.read_bytes() for path in before} == before
    assert result.steps == 2 and list((run / "evaluations").glob("step_2.jsonl"))
