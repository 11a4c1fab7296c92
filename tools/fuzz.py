"""Draw settings at random: each is refused by a typed error or accepted; of these a sample trains a step.

usage: python tools/fuzz.py [--settings 20000] [--runs 200] [--seed 0]

Prints each setting that raised something else, or was accepted and then did not train; exit status 1 if any.
A run takes a few seconds (the tiny model, no Ray).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

from rl_trainer import load_config, run_ppo
from rl_trainer.config.loading import Key, config_keys
from rl_trainer.errors import RLTrainerError
from rl_trainer.plan.resolve import resolve
from rl_trainer.tiny import tiny_overrides

# What a run needs as it is: its place, its data, its model, its size.
FIXED = re.compile(r"path$|_files$|_dir$|split$|^trainer\.(backend|nnodes|n_|total_|device|ray_)|timeout")
ODD = ["null", "-1", "0", ".nan", ".inf", "1e308", "x", "[]", "{a: 1}", "true", "''", "ü\u2028"]
NUMBERS: dict[str, list[str]] = {
    "int": ["1", "2", "3", "4", "5", "7", "8", "16", "24", "64", "1000"],
    "float": ["0.001", "0.05", "0.2", "0.5", "0.9", "1.0", "1.5", "3.0", "10.0"],
    "bool": ["true", "false"],
}


@cache
def choices(path: str, base: tuple[str, ...]) -> list[str]:
    """The names that a key takes, read from its own error."""
    try:
        resolve(load_config("tiny_grpo", [*base, f"{path}=no-such-name"]))
    except RLTrainerError as error:
        listed = re.search(r"choose (.+)", str(error))
        return re.split(r", | or ", listed[1].partition(" (")[0]) if listed else []
    return []


def draw(chance: random.Random, keys: list[Key], base: tuple[str, ...], odd: float) -> list[str]:
    """One to five overrides; each is an odd value with probability `odd`."""
    words = []
    for key in chance.sample(keys, chance.randint(1, 5)):
        right = NUMBERS.get(key.type) or choices(key.path, base) or [str(key.default)]
        words.append(f"{key.path}={chance.choice(ODD if chance.random() < odd else right)}")
    return words


def accepted(config: str, words: list[str]) -> bool:
    """Whether a setting passes what is checked before a start; only a typed refusal is caught."""
    try:
        resolve(load_config(config, words))
    except RLTrainerError:
        return False
    return True


def faults_of(kind: str, words: list[str], attempt: Callable[[], object]) -> int:
    """1, and the setting with the end of its traceback printed, if the attempt raises."""
    try:
        attempt()
    except Exception:
        print(
            f"\n{kind}: {' '.join(words)}\n{''.join(traceback.format_exc().splitlines(True)[-6:])}",
            flush=True,
        )
        return 1
    return 0


def train(config: str, folder: Path, words: list[str]) -> None:
    """One step, silently."""
    run = [f"trainer.default_local_dir={folder}", "trainer.total_training_steps=1", "trainer.backend=local"]
    try:
        with (
            (folder.parent / "output").open("w") as sink,
            contextlib.redirect_stderr(sink),
            contextlib.redirect_stdout(sink),
        ):
            run_ppo(load_config(config, [*words, *run]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Draw, check, train a sample."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for flag, default in (("--settings", 20_000), ("--runs", 200), ("--seed", 0)):
        parser.add_argument(flag, type=int, default=default)
    options = parser.parse_args()
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)
    chance = random.Random(options.seed)
    keys = [key for key in config_keys().values() if not FIXED.search(key.path)]
    faults, refused, ran = 0, 0, 0
    with tempfile.TemporaryDirectory() as place:
        base = (
            *tiny_overrides(Path(place)),
            "trainer.device=cpu",
            "actor_rollout_ref.rollout.name=hf",
            "reward.num_processes=1",
            "trainer.val_before_train=false",
        )
        for turn in range(max(options.settings, options.runs)):
            config = chance.choice(["tiny_grpo", "tiny_ppo"])
            odd = 0.5 if turn % 2 else 0.0
            words = draw(chance, keys, base, odd)
            outcome: list[bool] = []
            faults += faults_of(
                "raised",
                words,
                lambda: outcome.append(accepted(config, [*base, *words])),  # noqa: B023
            )
            refused += outcome == [False]
            if outcome == [True] and ran < options.runs:
                ran += 1
                faults += faults_of(
                    "did not train",
                    words,
                    lambda: train(config, Path(place, "fuzz"), [*base, *words]),  # noqa: B023
                )
            if turn % 1000 == 999:
                print(f"{turn + 1} settings, {refused} refused, {ran} trained, {faults} faults", flush=True)
            if turn + 1 >= options.settings and ran >= options.runs:
                break
    print(f"{refused} refused, {ran} trained, {faults} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
