"""Scores of a sequence classifier: packed equals one by one, by token ids or through its chat template."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from workers_models import make_batch
from workers_programs import run_reward
from workers_ranks import run_ranks

from rl_protocol import DataProto
from rl_workers import FSDPConfig, ModelConfig, RewardModelConfig

BATCH = make_batch(groups=2, n=3, prompt=9, response=7, seed=13)
RAW = np.array(
    [
        "1 + 1",
        [{"role": "system", "content": "add"}, {"role": "user", "content": "2 + 2"}],
        "a",
        "b",
        "c",
        "d",
    ],
    dtype=object,
)


def reward_config(path: str, tokenizer: str = "") -> RewardModelConfig:
    return RewardModelConfig(
        model=ModelConfig(path=path),
        input_tokenizer=tokenizer,
        fsdp_config=FSDPConfig(compute_dtype="float32"),
        forward_max_token_len_per_gpu=64,
        device="cpu",
    )


def expected(path: str, sequences: list[list[int]]) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=1)
    with torch.no_grad():
        hidden = [model.model(torch.tensor([ids])).last_hidden_state[0, -1] for ids in sequences]
        return [float(model.score(h)) for h in hidden]


def check(found: np.ndarray, wanted: list[float], mask: torch.Tensor) -> None:
    for row, score in enumerate(wanted):
        last = int(mask[row].nonzero()[-1])
        assert found[row, last] == pytest.approx(score, abs=1e-4)
        assert np.count_nonzero(found[row]) == 1


def test_by_token_ids_on_two_ranks(tiny_classifier: str, tmp_path: Path) -> None:
    data = DataProto.from_dict(tensors=BATCH)
    found = np.concatenate(run_ranks(tmp_path, 2, run_reward, reward_config(tiny_classifier), data))
    real = BATCH["attention_mask"].bool()
    sequences = [BATCH["input_ids"][row][real[row]].tolist() for row in range(6)]
    check(found, expected(tiny_classifier, sequences), BATCH["response_mask"])


def test_through_its_own_chat_template(tiny_classifier: str, tiny_model: str, tmp_path: Path) -> None:
    batch = dict(BATCH)
    batch["response_mask"] = batch["response_mask"].clone()
    batch["response_mask"][5] = 0  # nothing to score
    data = DataProto.from_dict(tensors=batch, non_tensors={"raw_prompt": RAW})
    found = run_ranks(tmp_path, 1, run_reward, reward_config(tiny_classifier, tiny_model), data)[0]
    tokenizer = AutoTokenizer.from_pretrained(tiny_classifier)
    sequences = []
    for row in range(5):
        raw = RAW[row]
        messages = [{"role": "user", "content": raw}] if isinstance(raw, str) else raw
        ids = batch["responses"][row][batch["attention_mask"][row, 9:].bool()]
        messages = [
            *messages,
            {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        sequences.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    check(found[:5], expected(tiny_classifier, sequences), batch["response_mask"])
    assert (found[5] == 0).all()
