"""TRL's side of `against_trl.py`; runs in an environment that holds TRL. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):  # type: ignore[misc]
    """Seconds of each step, and of parts of it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.parts: dict[str, float] = {}
        self.start = self.cpu = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start."""
        self.parts, self.start, self.cpu = {}, time.perf_counter(), time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop; what is neither sampling nor scoring is forward, backward and optimizer."""
        step = time.perf_counter() - self.start
        sampled = self.parts.get("rows", 0.0)
        generation, old = self.parts.get("generation", 0.0), self.parts.get("old_log_probs", 0.0)
        self.steps.append(
            {
                "step": step,
                "cpu": time.process_time() - self.cpu,
                "generation": generation,
                "old_log_probs": old,
                "training": step - sampled,
            }
        )

    def watch(self, trainer: GRPOTrainer, method: str, part: str) -> None:
        """Time calls of a method of the trainer."""
        call: Callable[..., Any] = getattr(trainer, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            if part != "old_log_probs" or not torch.is_grad_enabled():
                self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - start
            return result

        setattr(trainer, method, timed)


def reward(completions: list[Any], **columns: Any) -> list[float]:
    """Differs within a group, so that every group trains."""
    return [float(sum(map(ord, str(completion))) % 7) for completion in completions]


def main() -> None:
    """Train a few steps and print their seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--weights", default="float32")
    parser.add_argument("--micro-batch", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="more of GRPOConfig")
    options = parser.parse_args()
    torch.set_num_threads(2)
    rows = [json.loads(line) for line in Path(options.prompts).read_text(encoding="utf-8").splitlines()]
    clock = Clock()
    whole = options.batch * options.samples
    micro = options.micro_batch or whole
    settings: dict[str, Any] = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": whole // micro,
        "num_generations": options.samples,
        "max_completion_length": options.tokens,
        "generation_kwargs": {"min_new_tokens": options.tokens},
        "max_steps": options.steps,
        "learning_rate": 1e-5,
        "beta": 0.0,
        "num_iterations": 1,
        "temperature": 1.0,
        "bf16": options.dtype == "bfloat16",
        "gradient_checkpointing": False,
        "use_cpu": True,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "model_init_kwargs": {"dtype": options.weights},
    }
    settings |= {key: json.loads(value) for key, value in (text.split("=", 1) for text in options.set)}
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir="trl-out", **settings),
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        callbacks=[clock],
    )
    clock.watch(trainer, "_generate_and_score_completions", "rows")
    clock.watch(trainer, "_generate", "generation")
    clock.watch(trainer, "_get_per_token_logps_and_entropies", "old_log_probs")
    trainer.train()
    key = "completions/mean_length"
    lengths = [line[key] for line in trainer.state.log_history if key in line]
    print("RESULT " + json.dumps({"steps": clock.steps, "lengths": lengths}))


if __name__ == "__main__":
    main()
