"""Seconds per training step against TRL's GRPOTrainer: same model, prompts, samples, lengths, dtype, threads.

usage: python benchmarks/trainer/against_trl.py MODEL_FOLDER TRL_PYTHON [--dtype float32] [--rounds 2]

TRL runs with two threads in one process, ours with one thread in each of two workers. Weights are float32
in both, computation is in --dtype, responses have the full length. Each round runs TRL, ours with vLLM and
ours with transformers one after the other; the first step of each run, which warms up, is left out. Beside
the wall clock stands the CPU time of all processes together: where it is far below two seconds a second,
others had the cores and the wall clock says little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from rl_trainer import load_config, run_ppo
from rl_trainer.view.display import Display

PROMPTS, SAMPLES, TOKENS = 8, 4, 64
PARTS = ("step", "cpu", "generation", "weight_sync", "old_log_probs", "training")
OURS = {
    "step": "timing_s/step",
    "cpu": "cpu",
    "generation": "timing_s/gen",
    "weight_sync": "timing_s/push_weights/max",
    "old_log_probs": "timing_s/old_log_prob",
    "training": "timing_s/update_actor",
}
TOPICS = ["tides", "rain", "glaciers", "volcanoes", "bees", "bread", "bridges", "clocks"]
# Keep freed memory, as our workers do: by default it goes back to the system and each step faults it in anew.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(64 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
Steps = list[dict[str, float]]


class CPUClock(Display):
    """Notes the CPU seconds of this process and all below it when each step ends."""

    def __init__(self) -> None:
        super().__init__()
        self.at_end: list[float] = []

    def show(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        if event["kind"] == "step":
            self.at_end.append(tree_seconds())
        super().show(event)


def tree_seconds() -> float:
    """CPU seconds of this process and of those it started."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def write_prompts(path: Path) -> Path:
    """As many different prompts as one step takes, each about 60 tokens long."""
    text = (
        "Explain in plain words how {} work, for a reader who has never heard of them, "
        "and say what people get wrong."
    )
    rows = [
        {"prompt": [{"role": "user", "content": text.format(topic)}], "reward_model": {"ground_truth": ""}}
        for topic in TOPICS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trl(folder: Path, prompts: Path, python: str, model: str, options: argparse.Namespace) -> Steps:
    """Each step but the first of TRL's trainer."""
    script = Path(__file__).with_name("trl_run.py")
    sizes = {
        "batch": PROMPTS,
        "samples": SAMPLES,
        "tokens": TOKENS,
        "steps": options.steps,
        "dtype": options.dtype,
        "micro-batch": options.trl_micro_batch,
    }
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [python, str(script), model, str(prompts), *words]
    environment = os.environ | ALLOCATOR | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    if done.returncode:
        raise SystemExit(f"TRL failed:\n{done.stderr[-3000:]}")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(line.removeprefix("RESULT "))
    assert set(found["lengths"]) == {TOKENS}, "responses must have the full length"
    steps: Steps = found["steps"]
    return steps[1:]


def ours(folder: Path, prompts: Path, model: str, engine: str, options: argparse.Namespace) -> Steps:
    """Each step but the first of ours."""
    reward = folder / "reward.py"
    reward.write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(sum(map(ord, solution_str)) % 7)\n",
        encoding="utf-8",
    )
    run = folder / f"{engine}-{time.time()}"
    clock = CPUClock()
    run_ppo(
        load_config(
            "quickstart",
            [
                f"actor_rollout_ref.model.path={model}",
                f"data.train_files=[{prompts}]",
                f"data.train_batch_size={PROMPTS}",
                "data.max_prompt_length=96",
                f"data.max_response_length={TOKENS}",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
                f"actor_rollout_ref.actor.fsdp_config.compute_dtype={options.dtype}",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                f"actor_rollout_ref.rollout.name={engine}",
                f"actor_rollout_ref.rollout.dtype={options.dtype}",
                "actor_rollout_ref.rollout.ignore_eos=true",
                f"reward.function={reward}:score",
                f"trainer.default_local_dir={run}",
                f"trainer.total_training_steps={options.steps}",
                "trainer.n_workers_per_node=2",
                "trainer.export_at_end=false",
                "trainer.report=false",
            ],
        ),
        display=clock,
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["response_length/min"] == TOKENS, "responses must have the full length"
    for line, before, after in zip(lines[1:-1], clock.at_end, clock.at_end[1:], strict=False):
        line["cpu"] = after - before  # the last step's would hold the checkpoint that is saved at the end
    return [{part: line[key] for part, key in OURS.items() if key in line} for line in lines[1:]]


def report(results: Mapping[str, Steps]) -> None:
    """Medians, and how many times as fast as TRL."""
    medians = {
        name: {
            part: statistics.median(s[part] for s in steps if part in s)
            for part in PARTS
            if any(part in s for s in steps)
        }
        for name, steps in results.items()
    }
    print(f"\nseconds a step, medians\n{'':14}" + "".join(f"{part.replace('_', ' '):>15}" for part in PARTS))
    for name, parts in medians.items():
        cells = "".join(f"{parts[part]:15.1f}" if part in parts else f"{'-':>15}" for part in PARTS)
        times = medians["TRL"]["step"] / parts["step"]
        print(f"{name:14}{cells}   {times:.2f} times as fast as TRL")
    print(
        "step is the wall clock; cpu sums all processes, at most two seconds a second; "
        "generation holds weight sync"
    )


def main() -> None:
    """Measure all three and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("trl_python", help="the Python of an environment with trl==1.16.0 and torch==2.13.0")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--steps", type=int, default=4, help="steps of each run; 3 or more")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trl-micro-batch", type=int, default=8, help="rows in TRL's forward pass")
    options = parser.parse_args()
    results: dict[str, Steps] = {"TRL": [], "ours, vllm": [], "ours, hf": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = write_prompts(folder / "prompts.jsonl")
        for number in range(options.rounds):
            for system, steps in results.items():
                start, load = time.monotonic(), os.getloadavg()[0]
                if system == "TRL":
                    new = trl(folder, prompts, options.trl_python, options.model, options)
                else:
                    new = ours(folder, prompts, options.model, system.rpartition(" ")[2], options)
                steps += new
                seconds = " ".join(f"{step['step']:.1f}" for step in new)
                print(
                    f"round {number + 1}, {system}: steps of {seconds} s "
                    f"(load before it {load:.1f}; the run took {time.monotonic() - start:.0f} s)",
                    flush=True,
                )
    report(results)


if __name__ == "__main__":
    main()
