"""Makes what the configuration names: sums and products as prompts, and a tiny model that knows the notation.

The model is taught by demonstrations, of which a quarter ask the calculator and the others guess, as a
pretrained model may or may not use a tool. Which of the two is worth it is left to reinforcement learning.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_trainer.data.tasks import write_jsonl
from rl_trainer.models.tiny import make_tiny_model

CHARACTERS = "0123456789+*=;?"
HELD_OUT = 22
ASKING = 0.25


def make_rows() -> list[dict[str, Any]]:
    """The 162 sums and products of two digits, shuffled."""
    digits = range(1, 10)
    results = {f"{a}+{b}": a + b for a in digits for b in digits}
    results |= {f"{a}*{b}": a * b for a in digits for b in digits}
    rows = [
        {"data_source": "calculator", "prompt": f"{task}?", "reward_model": {"ground_truth": str(result)}}
        for task, result in results.items()
    ]
    random.Random(0).shuffle(rows)
    return rows


def demonstrate(row: dict[str, Any], draw: random.Random) -> str:
    """A transcript: `3*4=12;12` or a guess."""
    truth = row["reward_model"]["ground_truth"]
    return f"{row['prompt'][:-1]}={truth};{truth}" if draw.random() < ASKING else str(draw.randint(1, 81))


def teach(folder: Path, rows: list[dict[str, Any]], steps: int = 250) -> None:
    """Train the model in `folder` to continue prompts as the demonstrations do."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    optimizer, draw = torch.optim.AdamW(model.parameters(), lr=3e-3), random.Random(0)
    for _ in range(steps):
        chosen = draw.choices(rows, k=64)
        texts = [row["prompt"] + demonstrate(row, draw) + tokenizer.eos_token for row in chosen]
        batch = tokenizer(
            texts, return_tensors="pt", padding=True, padding_side="right", return_token_type_ids=False
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        labels[:, : len(rows[0]["prompt"])] = -100
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def main(folder: Path) -> None:
    """Write `model`, `train.jsonl` and `val.jsonl`."""
    rows = make_rows()
    torch.manual_seed(0)
    make_tiny_model(folder / "model", characters=CHARACTERS)
    teach(folder / "model", rows[HELD_OUT:])
    write_jsonl(folder / "train.jsonl", rows[HELD_OUT:])
    write_jsonl(folder / "val.jsonl", rows[:HELD_OUT])


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/calculator"))
