"""How long `rl-trainer train` takes to its first sampled token, and where the time goes.

    python benchmarks/trainer/startup.py [--engines hf vllm] [--runs 2] [--workers 2]

A cold process each time, on the tiny configuration; the first run also warms the file cache. An agent loop in
the workers notes when their engine stands and when it has sampled one token; the stages before are the lines
that the program shows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from rl_rollout import AgentLoop, AgentRow, AsyncEngine, RolloutConfig, Transcript

STAMPS = "RL_STARTUP_STAMPS"
BARS = {"hf": 30.0, "vllm": 60.0}
STAGES = {
    "loading torch and Ray, checking the configuration": "command: interpreter, reading the configuration",
    "starting Ray": "command: imports, checking the configuration",
    "starting the driver program": "Ray",
    "reading prompts": "driver program: process, imports",
    "starting worker processes": "tokenizer, prompts, reward",
    "loading the actor_rollout model": "worker processes: start, imports",
    "engine": "model, optimizer, engine",
    "token": "weights into the engine, first token",
}


def stamp(event: str) -> None:
    """Note the time of an event in this process, and when the process began."""
    line = {"event": event, "time": time.time(), "born": psutil.Process().create_time()}
    with Path(os.environ[STAMPS]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class FirstToken(AgentLoop):
    """Every answer is one token."""

    def __init__(self) -> None:
        self.seen = False

    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        """Sample it."""
        row = replace(row, sampling=replace(row.sampling, max_tokens=1))
        transcript.add_generated(await engine.generate(transcript, row))
        if not self.seen:
            stamp("token")
        self.seen = True


def build_loop(config: RolloutConfig, tokenizer: Any) -> AgentLoop:
    """Called in each worker as soon as its engine stands."""
    stamp("engine")
    return FirstToken()


def run(folder: Path, engine: str, workers: int) -> dict[str, float]:
    """Seconds from the start of the process to the end of each stage."""
    from rl_trainer.tiny import tiny_overrides

    folder.mkdir(parents=True)
    stamps = folder / "stamps.jsonl"
    command = [sys.executable, "-m", "rl_trainer.main_ppo", "tiny_grpo", *tiny_overrides(folder)]
    command += [
        f"actor_rollout_ref.rollout.name={engine}",
        "actor_rollout_ref.rollout.agent_loop=startup:build_loop",
        f"trainer.n_workers_per_node={workers}",
        "trainer.total_training_steps=0",
        "trainer.export_at_end=false",
        "trainer.report=false",
    ]
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {STAMPS: str(stamps), "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    start, ends = time.time(), {}
    shown: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown.append(line)
            found = re.match(r"\[ *[\d.]+ s\] (.*)", line)
            if found and found[1] in STAGES:
                ends[found[1]] = time.time() - start
    if process.returncode or not stamps.exists():
        raise SystemExit("the run failed:\n" + "".join(shown[-30:]))
    events = [json.loads(line) for line in stamps.read_text(encoding="utf-8").splitlines()]
    ends["engine"] = max(e["time"] for e in events if e["event"] == "engine") - start
    ends["token"] = min(e["time"] for e in events if e["event"] == "token") - start
    return ends


def report(engine: str, ends: Mapping[str, float], load: float) -> None:
    """One run's split."""
    bar = BARS[engine]
    verdict = "within" if ends["token"] <= bar else "MISSES"
    print(f"\n{engine}: first token after {ends['token']:.1f} s, {verdict} {bar:.0f} s (load {load:.1f})")
    before = 0.0
    for stage, text in STAGES.items():
        print(f"    {ends[stage] - before:6.1f} s  {text}")
        before = ends[stage]


def main() -> None:
    """Measure both engines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", nargs="*", default=["hf", "vllm"], choices=list(BARS))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.runs):
            for engine in options.engines:
                load = os.getloadavg()[0]
                ends = run(Path(name) / f"{engine}-{number}", engine, options.workers)
                report(engine, ends, load)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
