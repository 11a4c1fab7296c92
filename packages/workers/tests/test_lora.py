"""Adapters: trained alone, off for the reference, pushed, saved and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM
from workers_programs import actor_config, run_lora
from workers_ranks import run_ranks

from rl_workers import WorkerConfigError
from rl_workers.model.lora import add_adapters


@pytest.fixture(scope="module")
def found(tied_model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    folder = tmp_path_factory.mktemp("lora")
    config = actor_config(
        tied_model, lr=0.5, model__lora_rank=4, model__target_modules=["q_proj", "down_proj"]
    )
    return run_ranks(folder, 2, run_lora, config, str(folder)), folder


def test_the_reference_is_the_actor_without_its_adapter(found: tuple[list[Any], Path]) -> None:
    for rank in found[0]:
        assert not rank["has_ref_model"]
        np.testing.assert_array_equal(rank["ref"], rank["start"])
        assert np.abs(rank["after"] - rank["start"]).max() > 1e-3


def test_the_engine_has_the_adapter(found: tuple[list[Any], Path]) -> None:
    for metrics in (found[0][0]["metrics"][0], found[0][0]["metrics"][-1]):
        assert metrics["rollout_corr/log_prob_diff_max"] < 1e-4


def test_the_checkpoint_holds_the_adapter_alone(found: tuple[list[Any], Path]) -> None:
    ranks, folder = found
    names = list(FileSystemReader(folder / "checkpoint").read_metadata().state_dict_metadata)
    assert names and all("lora_" in name for name in names if name.startswith("model."))
    for rank in ranks:
        np.testing.assert_allclose(rank["restored"], rank["after"], atol=1e-6)


def test_merged_and_separate_exports_compute_the_same(found: tuple[list[Any], Path], tied_model: str) -> None:
    ranks, folder = found
    tensors = load_file(folder / "merged" / "model.safetensors")
    assert "lm_head.weight" not in tensors and not any("lora" in name for name in tensors)
    merged = AutoModelForCausalLM.from_pretrained(folder / "merged")
    base = AutoModelForCausalLM.from_pretrained(tied_model)
    adapted = PeftModel.from_pretrained(base, str(folder / "adapter"))
    assert json.loads((folder / "adapter" / "adapter_config.json").read_text())["r"] == 4
    batch = {k: torch.tensor(v) for k, v in ranks[0]["batch"].items()}
    inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "position_ids")}
    mask = batch["response_mask"].bool()
    for model in (merged, adapted):
        with torch.no_grad():
            logits = model(**inputs).logits[:, -mask.shape[1] - 1 : -1]
        log_p = torch.log_softmax(logits, -1).gather(2, batch["responses"][..., None])[..., 0]
        assert (log_p - torch.tensor(ranks[0]["after"]))[mask].abs().max() < 1e-4


def test_no_module_of_that_name(tiny_model: str) -> None:
    model = actor_config(tiny_model, model__lora_rank=2, model__target_modules=["no_such"]).model
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(WorkerConfigError, match="no_such"):
        add_adapters(lm, model)
