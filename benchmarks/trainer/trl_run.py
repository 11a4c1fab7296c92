"""TRL's side of `against_trl.py`; runs in an environment that holds TRL. Prints one JSON line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):  # type: ignore[misc]
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.start = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start."""
        self.start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Stop."""
        self.seconds.append(time.perf_counter() - self.start)


def reward(completions: list[Any], **columns: Any) -> list[float]:
    """Differs within a group, so that every group trains."""
    return [float(sum(map(ord, str(completion))) % 7) for completion in completions]


def main() -> None:
    """Arguments: model folder, prompts (JSON lines), prompts a step, samples, tokens, steps, dtype."""
    model, prompts, batch, samples, tokens, steps, dtype = sys.argv[1:]
    torch.set_num_threads(2)
    rows = [json.loads(line) for line in Path(prompts).read_text(encoding="utf-8").splitlines()]
    clock = Clock()
    config = GRPOConfig(
        output_dir="trl-out",
        per_device_train_batch_size=int(batch) * int(samples),
        num_generations=int(samples),
        max_completion_length=int(tokens),
        generation_kwargs={"min_new_tokens": int(tokens)},
        max_steps=int(steps),
        learning_rate=1e-5,
        beta=0.0,
        temperature=1.0,
        bf16=dtype == "bfloat16",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        callbacks=[clock],
    )
    trainer.train()
    print("RESULT " + json.dumps({"step": clock.seconds}))


if __name__ == "__main__":
    main()
