"""The examples run as their pages say."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from workspace import ROOT

from rl_protocol import DataProto
from rl_rollout import RolloutConfig, build_agent_loop, build_rollout, run_agent_loop
from rl_trainer import PromptDataset, collate, load_config, run_ppo
from rl_trainer.config.tree import DataConfig
from rl_trainer.tiny import tiny_overrides

CLI = str(Path(sys.executable).with_name("rl-trainer"))
LOOP = str(ROOT / "examples/calculator/calculator_loop.py")


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the repository's root, with what `prepare.py` makes."""
    folder = tmp_path_factory.mktemp("calculator")
    shutil.copytree(ROOT / "examples", folder / "examples")
    run(folder, sys.executable, "examples/calculator/prepare.py")
    return folder


def test_tokens_of_the_calculator_are_read_and_not_trained_on(calculator: Path) -> None:
    made = calculator / "runs/calculator"
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    config = RolloutConfig(
        name="hf",
        agent_loop=f"{LOOP}:make_loop",
        prompt_length=8,
        response_length=16,
        dtype="float32",
        load_format="auto",
    )
    dataset = PromptDataset([str(made / "val.jsonl")], tokenizer, DataConfig(max_prompt_length=8))
    prompts = DataProto.from_single_dict(collate([dataset[i] for i in range(16)], tokenizer.pad_token_id))
    rollout = build_rollout(config, str(made / "model"), "cpu", tokenizer)
    loop = build_agent_loop(config, tokenizer)
    assert loop is not None
    batch = run_agent_loop(rollout, loop, prompts)
    turns = batch.non_tensor_batch["num_turns"]
    assert 0 < (turns == 2).sum() < len(turns)  # the model asks for some prompts and guesses for others
    truths = [row["ground_truth"] for row in prompts.non_tensor_batch["reward_model"]]
    asked = told = 0
    for row in (turns == 2).nonzero()[0]:
        ids, mask = batch.batch["responses"][row], batch.batch["response_mask"][row]
        length = int(batch.batch["attention_mask"][row, -16:].sum())
        seen = tokenizer.decode(ids[:length][mask[:length] == 0])
        chosen = tokenizer.decode(ids[:length][mask[:length] == 1], skip_special_tokens=True)
        told += seen == f"{truths[row]};"
        asked += chosen.partition("=")[0] == prompts.non_tensor_batch["raw_prompt"][row][:-1]
        assert batch.batch["rollout_log_probs"][row][:length][mask[:length] == 0].eq(0).all()
    assert asked == told > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_calculator_example_learns_to_ask(calculator: Path) -> None:
    run(calculator, CLI, "train", "examples/calculator/config.yaml", "trainer.total_training_steps=12")
    lines = read_lines(calculator / "runs/calculator/run/metrics.jsonl")
    assert lines[1]["agent/num_turns/mean"] < 1.6 < 1.8 < lines[-1]["agent/num_turns/mean"]
    score = "val-core/calculator/reward/mean@4"
    assert lines[0][score] < 0.45 and lines[-1][score] > lines[0][score] + 0.25
    assert all(line["agent/failed_rows/sum"] == 0 for line in lines)


RECIPE = ROOT / "examples/skip_cut_off/train.py"


def recipe_words(folder: Path) -> list[str]:
    short = ["trainer.total_training_steps=2", "trainer.val_before_train=false"]
    return [*tiny_overrides(folder), "actor_rollout_ref.rollout.name=hf", *short]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_recipe_changes_one_stage_in_under_thirty_lines(tmp_path: Path) -> None:
    assert len(RECIPE.read_text().splitlines()) < 30
    words = [*recipe_words(tmp_path), "trainer.n_workers_per_node=1"]
    run(tmp_path, sys.executable, str(RECIPE), "tiny_grpo", *words)
    lines = read_lines(tmp_path / "run/metrics.jsonl")
    assert len(lines) == 2 and all(0 < line["train/cut_off"] < 1 for line in lines)
    assert all(line["actor/grad_norm"] > 0 for line in lines)


def test_a_response_that_was_cut_off_teaches_nothing(tmp_path: Path) -> None:
    # Where every response is cut the policy stays as it was.
    words = [*recipe_words(tmp_path), "trainer.backend=local", "data.max_response_length=1"]
    run_ppo(load_config("tiny_grpo", words), runpy.run_path(str(RECIPE))["Runner"])
    assert all(line["train/cut_off"] == 1 for line in read_lines(tmp_path / "run/metrics.jsonl"))
    folders = (tmp_path / "model", tmp_path / "run/export")
    before, after = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    assert all(torch.equal(before[name], after[name]) for name in before)
