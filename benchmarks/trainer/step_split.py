"""Where the time of a quick-start step goes: engine, weights, training, and everything around them.

    python benchmarks/trainer/step_split.py [--engine vllm] [--steps 6]

Trains a few steps of the quick start (SmolLM2-135M, 16 prompts x 8 samples) with workers that note how long
their engine generated and how long forward, backward and optimizer took. What is left of a step is Ray, the
driver, rewards and moving data. Of ranks that work side by side the slowest counts. The first step, which
warms up, is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_controller import Dispatch, register
from rl_trainer import TaskRunner, load_config, run_ppo
from rl_trainer.cluster.roles import Role
from rl_trainer.quickstart import overrides
from rl_workers import ActorRolloutRefWorker

NOTES = "RL_STEP_NOTES"
BAR = 0.10
PARTS = {
    "generate": "generation by the engine",
    "train_step": "forward, backward, optimizer",
    "push_weights": "weights into the engine",
}


class TimedWorker(ActorRolloutRefWorker):
    """Notes the seconds of each call of its engines."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """As always, with a clock around the engines' calls."""
        super().init_model()
        self._watch(self.rollout, "generate")
        self._watch(self.actor, "train_step")
        self._watch(self._manager, "push_weights")

    def _watch(self, owner: Any, method: str) -> None:
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            note = {"rank": self.rank, "part": method, "seconds": time.perf_counter() - start}
            with Path(f"{os.environ[NOTES]}.{self.rank}").open("a", encoding="utf-8") as file:
                file.write(json.dumps(note) + "\n")
            return result

        setattr(owner, method, timed)


class TimedRunner(TaskRunner):
    """The usual driver program, with those workers."""

    def add_roles(self, config: Any) -> dict[Role, type]:
        """See `TaskRunner.add_roles`."""
        return super().add_roles(config) | {Role.ActorRollout: TimedWorker}


def slowest(notes: Path, part: str, steps: int) -> list[float]:
    """Seconds of a part in each step, of the slowest rank."""
    ranks: dict[int, list[float]] = {}
    for path in notes.parent.glob(f"{notes.name}.*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if note["part"] == part:
                ranks.setdefault(note["rank"], []).append(note["seconds"])
    assert all(len(seconds) == steps for seconds in ranks.values()), "one call a step"
    return [max(step) for step in zip(*ranks.values(), strict=True)]


def report(lines: list[dict[str, float]], notes: Path) -> None:
    """The split of each step, and the share that is not model compute."""
    steps = len(lines)
    of_parts = {part: slowest(notes, part, steps) for part in PARTS}
    wholes = [line["timing_s/step"] for line in lines]
    rests = [whole - sum(of_parts[part][i] for part in PARTS) for i, whole in enumerate(wholes)]
    rows = {text: of_parts[part] for part, text in PARTS.items()} | {"Ray, driver, reward, data": rests}
    print(f"\n{'seconds a step, median of steps 2 to ' + str(steps):40}{'':10}share")
    whole = statistics.median(wholes[1:])
    for text, seconds in rows.items():
        print(
            f"    {text:36}{statistics.median(seconds[1:]):8.2f}{statistics.median(seconds[1:]) / whole:8.1%}"
        )
    print(f"    {'step':36}{whole:8.2f}")
    outside = [1 - (of_parts["generate"][i] + of_parts["train_step"][i]) / wholes[i] for i in range(1, steps)]
    share = statistics.median(outside)
    verdict = "within" if share < BAR else "MISSES"
    print(f"outside model compute (weights and the rest): {share:.1%}, {verdict} {BAR:.0%}")
    print(f"    of each step: {' '.join(f'{value:.1%}' for value in outside)}")
    timings = sorted({key for line in lines for key in line if key.startswith("timing_s/")})
    print(
        "the driver's own clock: "
        + ", ".join(
            f"{k.removeprefix('timing_s/')} {statistics.median([x.get(k, 0.0) for x in lines[1:]]):.2f}"
            for k in timings
        )
    )


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="vllm", choices=["vllm", "hf"])
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[NOTES] = str(folder / "notes")
        config = load_config(
            "quickstart",
            [
                *overrides(folder / "run"),
                f"actor_rollout_ref.rollout.name={options.engine}",
                f"trainer.total_training_steps={options.steps}",
                "trainer.test_freq=-1",
                "data.val_files=[]",
                "trainer.export_at_end=false",
                "trainer.report=false",
            ],
        )
        print(f"load before the run: {os.getloadavg()[0]:.1f}", flush=True)
        run_ppo(config, TimedRunner)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        report(lines, folder / "notes")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from step_split import main as run  # so that workers import these classes by their module's name

    run()
