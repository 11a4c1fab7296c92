"""Export to Hugging Face: a tied weight once, tied again after loading, the same log-probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from workers_models import make_batch
from workers_programs import actor_config, run_actor
from workers_ranks import run_ranks

import rl_workers.model.export as export

BATCH = make_batch(2, 3, 9, 7, seed=17)


def test_a_trained_tied_model(tied_model: str, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    ranks = run_ranks(tmp_path, 2, run_actor, actor_config(tied_model), BATCH, 2, export=str(out))
    with safe_open(out / "model.safetensors", framework="pt") as handle:
        names = set(handle.keys())
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (
        AutoTokenizer.from_pretrained(out)("ab").input_ids
        == AutoTokenizer.from_pretrained(tied_model)("ab").input_ids
    )
    inputs = {k: BATCH[k] for k in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        log_p = torch.log_softmax(model(**inputs).logits[:, 8:-1] / 0.7, -1)
    found = log_p.gather(2, BATCH["responses"][..., None])[..., 0] * BATCH["response_mask"]
    np.testing.assert_allclose(found.numpy(), np.concatenate([r["after"] for r in ranks]), atol=1e-5)


def test_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_PART_BYTES", 100)
    tensors = {f"t{i}": torch.full((10,), float(i)) for i in range(5)}
    export._write_parts(iter(tensors.items()), tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"model-{i}-of-00003.safetensors" for i in ("00001", "00002", "00003")] + [
        "model.safetensors.index.json"
    ]
