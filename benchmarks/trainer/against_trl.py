"""Seconds per training step against TRL's GRPOTrainer: same model, prompts, samples, lengths, dtype, threads.

usage: python benchmarks/trainer/against_trl.py MODEL_FOLDER TRL_PYTHON [--dtype float32] [--steps 4]

TRL runs with two threads in one process, ours with one thread in each of two workers. Responses have the full
length in both. The first step, which warms up, is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from rl_trainer import load_config, run_ppo

PROMPTS, SAMPLES, TOKENS = 8, 4, 64
PARTS = {
    "generation": "timing_s/gen",
    "of which weight sync": "timing_s/push_weights/max",
    "old log-probs": "timing_s/old_log_prob",
    "training": "timing_s/update_actor",
}
TOPICS = ["tides", "rain", "glaciers", "volcanoes", "bees", "bread", "bridges", "clocks"]


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


def ours(
    folder: Path, prompts: Path, model: str, engine: str, dtype: str, steps: int
) -> list[dict[str, float]]:
    """Metrics of each step but the first."""
    reward = folder / "reward.py"
    reward.write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    return float(sum(map(ord, solution_str)) % 7)\n",
        encoding="utf-8",
    )
    run = folder / engine
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
                f"actor_rollout_ref.actor.fsdp_config.compute_dtype={dtype}",
                f"actor_rollout_ref.rollout.n={SAMPLES}",
                f"actor_rollout_ref.rollout.name={engine}",
                f"actor_rollout_ref.rollout.dtype={dtype}",
                "actor_rollout_ref.rollout.ignore_eos=true",
                f"reward.function={reward}:score",
                f"trainer.default_local_dir={run}",
                f"trainer.total_training_steps={steps}",
                "trainer.n_workers_per_node=2",
                "trainer.export_at_end=false",
                "trainer.report=false",
            ],
        )
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["response_length/min"] == TOKENS, "responses must have the full length"
    return lines[1:]


def main() -> None:
    """Measure all three and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("trl_python", help="the Python of an environment with trl==1.16.0 and torch==2.13.0")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prompts = write_prompts(folder / "prompts.jsonl")
        script = Path(__file__).with_name("trl_run.py")
        arguments = [options.model, str(prompts), PROMPTS, SAMPLES, TOKENS, options.steps, options.dtype]
        command = [options.trl_python, str(script), *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=1800)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        trl = statistics.median(json.loads(line.removeprefix("RESULT "))["step"][1:])
        print(f"TRL            {trl:6.1f} s a step")
        for engine in ("vllm", "hf"):
            lines = ours(folder, prompts, options.model, engine, options.dtype, options.steps)
            step = statistics.median(line["timing_s/step"] for line in lines)
            print(f"ours, {engine:5}    {step:6.1f} s a step, {trl / step:.2f} times as fast")
            for part, key in PARTS.items():
                print(f"    {part:21}{statistics.median(line.get(key, 0.0) for line in lines):6.1f} s")


if __name__ == "__main__":
    main()
