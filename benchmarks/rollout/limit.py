"""How close generation comes to its matrix products: python limit.py MODEL [--engines vllm hf --rows 16 ...].

The products are those of the model's own linear layers at the shapes of the run: each distinct prompt once,
then one token per row and step, the output head for the tokens drawn. `plain` is `F.linear`, `packed` has the
weights laid out by oneDNN beforehand. Engine and products take turns, and the least of each counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_rollout import engine_env

os.environ.update(engine_env("cpu", offline=True))

import torch
import torch.nn.functional as F
from generation import make_prompts
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rl_protocol import DataProto
from rl_rollout import RolloutConfig, SamplingConfig, build_rollout


class Products:
    """The linear layers of a model on random weights, nothing between them."""

    def __init__(self, model: str, rows: int, packed: bool) -> None:
        with torch.device("meta"):
            shapes: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
        head = shapes.get_output_embeddings()
        layers = [m for m in shapes.modules() if isinstance(m, nn.Linear) and m is not head]
        self.weights = [self._lay_out(m.weight.shape, rows, packed) for m in [*layers, head]]
        self.widths = [m.weight.shape[1] for m in [*layers, head]]
        self.packed = packed

    @staticmethod
    def _lay_out(shape: Any, rows: int, packed: bool) -> Tensor:
        weight = torch.randn(shape) * 0.02
        return torch.ops.mkldnn._reorder_linear_weight(weight, rows) if packed else weight

    def __call__(self, tokens: int, heads: int) -> None:
        """`tokens` rows through all layers, `heads` of them through the head."""
        inputs = {width: torch.randn(tokens, width) for width in set(self.widths)}
        last = len(self.weights) - 1
        for place, (weight, width) in enumerate(zip(self.weights, self.widths, strict=True)):
            x = inputs[width][:heads] if place == last else inputs[width]
            if self.packed:
                torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
            else:
                F.linear(x, weight)


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def run(engine: str, model: str, prompts: DataProto, rows: int, tokens: int, repeats: int) -> None:
    """Print the least time of an engine, of both kinds of products, and the ratios."""
    assert prompts.batch is not None
    width = prompts.batch["input_ids"].shape[1]
    config = RolloutConfig(
        name=engine, dtype="float32", load_format="auto", prompt_length=width, response_length=tokens,
        max_num_seqs=rows, hf_batch_size=rows,
    )  # fmt: skip
    rollout: Any = build_rollout(config, model)
    distinct = {tuple(row[mask.bool()].tolist()) for row, mask in
                zip(prompts.batch["input_ids"], prompts.batch["attention_mask"], strict=True)}  # fmt: skip
    prompt_tokens = sum(map(len, distinct))
    plain, packed = Products(model, rows, False), Products(model, rows, True)

    def multiply(products: Products) -> None:
        products(prompt_tokens, rows)
        for _ in range(tokens - 1):
            products(rows, rows)

    def generate() -> None:
        if engine == "vllm":
            rollout.llm.reset_prefix_cache()
        rollout.generate_sequences(prompts)

    actions = {"plain": lambda: multiply(plain), "packed": lambda: multiply(packed), "engine": generate}
    least = dict.fromkeys(actions, float("inf"))
    with torch.inference_mode():
        plain(rows, rows), packed(rows, rows)
    for _ in range(repeats):
        for name, action in actions.items():
            with torch.inference_mode(name != "engine"):
                least[name] = min(least[name], timed(action))
    print(
        f"{engine}: {rows} rows of {len(distinct)} prompts ({prompt_tokens} tokens), {tokens} new tokens each"
    )
    print(f"engine {least['engine']:7.2f} s")
    for name in ("plain", "packed"):
        print(f"{name:6} {least[name]:7.2f} s   engine / products {least['engine'] / least[name]:.2f}")


def processor() -> str:
    """The machine, as /proc/cpuinfo names it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--engines", nargs="+", default=["vllm", "hf"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    if len(a.engines) > 1:  # a process each: what one holds in memory is no load for the other
        for engine in a.engines:
            subprocess.run([sys.executable, *sys.argv, "--engines", engine], check=True)
        return
    torch.set_num_threads(1)
    print(f"{processor()}, {torch.backends.cpu.get_cpu_capability()}, float32, one thread")
    prompts = make_prompts(AutoTokenizer.from_pretrained(a.model), a.rows, a.group)
    assert prompts.batch is not None
    prompts.batch["seeds"] = torch.arange(a.rows)
    prompts.meta_info["sampling"] = SamplingConfig(ignore_eos=True)
    run(a.engines[0], a.model, prompts, a.rows, a.tokens, a.repeats)


if __name__ == "__main__":
    main()
