"""vLLM against transformers.generate: python generation.py MODEL [--prompts 128 --tokens 64 --group 1]."""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from rl_rollout import engine_env

os.environ.update(engine_env("cpu", offline=True))

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl_protocol import DataProto
from rl_rollout import RolloutConfig, SamplingConfig, build_rollout


def make_prompts(tokenizer: Any, prompts: int, group: int) -> DataProto:
    """Left-padded chat prompts; `group` consecutive rows share one."""
    tokenizer.padding_side = "left"
    questions = [f"What is {i // 9 + 1} + {i % 9 + 1}? Answer with just the number." for i in range(prompts)]
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": questions[i // group]}], add_generation_prompt=True, tokenize=False
        )
        for i in range(prompts)
    ]
    encoded = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    mask = encoded["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    tensors = {"input_ids": encoded["input_ids"], "attention_mask": mask, "position_ids": positions}
    return DataProto.from_dict(tensors=tensors)


def time_vllm(model: str, prompts: DataProto, tokens: int, repeats: int, ignore_eos: bool) -> list[float]:
    """CPU seconds of each pass: with one thread, the wall time of a quiet machine.

    Prefixes are forgotten in between, as after a weight update."""
    config = RolloutConfig(
        name="vllm", load_format="auto", prompt_length=prompts.batch["input_ids"].shape[1],
        response_length=tokens, max_num_seqs=len(prompts),
    )  # fmt: skip
    rollout: Any = build_rollout(config, model)
    prompts.meta_info["sampling"] = SamplingConfig(ignore_eos=ignore_eos)
    times = []
    for _ in range(repeats):
        rollout.llm.reset_prefix_cache()
        started = time.process_time()
        rollout.generate_sequences(prompts)
        times.append(time.process_time() - started)
    return times


def time_transformers(
    model: str, prompts: DataProto, tokens: int, repeats: int, ignore_eos: bool
) -> list[float]:
    """CPU seconds of each pass of `generate`."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    options: dict[str, Any] = {"min_new_tokens": tokens} if ignore_eos else {}
    times = []
    for _ in range(repeats):
        started = time.process_time()
        with torch.inference_mode():
            loaded.generate(
                prompts.batch["input_ids"], attention_mask=prompts.batch["attention_mask"], do_sample=True,
                max_new_tokens=tokens, top_k=0, top_p=1.0, temperature=1.0, **options,
            )  # fmt: skip
        times.append(time.process_time() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--group", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--stop-at-eos", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    prompts = make_prompts(AutoTokenizer.from_pretrained(a.model), a.prompts, a.group)
    total, forced = a.prompts * a.tokens, not a.stop_at_eos
    theirs = min(time_transformers(a.model, prompts, a.tokens, a.repeats, forced))
    ours = min(time_vllm(a.model, prompts, a.tokens, a.repeats, forced))
    print(f"{a.prompts} prompts of {prompts.batch['input_ids'].shape[1]}, up to {a.tokens} tokens")
    print(f"transformers {theirs:7.2f} s  {total / theirs:6.0f} tokens/s at most")
    print(f"vllm         {ours:7.2f} s  {total / ours:6.0f} tokens/s at most")
    print(f"ratio        {theirs / ours:7.2f}")


if __name__ == "__main__":
    main()
