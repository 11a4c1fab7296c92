"""Prompts from files, seeds of rows, rows of mini-batches, scores on tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl_trainer.config.tree import DataConfig
from rl_trainer.data.dataset import PromptDataset, collate
from rl_trainer.data.seeds import row_seeds
from rl_trainer.data.sources import read_rows
from rl_trainer.data.tasks import addition_rows, copy_rows
from rl_trainer.errors import DataError
from rl_trainer.loop.updates import mini_batch_rows
from rl_trainer.models.tiny import make_tiny_model
from rl_trainer.reward.process import load_reward_function


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return loaded


def test_jsonl_and_parquet_give_the_same_rows(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"prompt": "ab=", "reward_model": {"ground_truth": "ab"}, "level": i} for i in range(3)]
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    one, two = (PromptDataset([str(file)], tokenizer, DataConfig()) for file in (lines, table))
    assert one.rows == two.rows and len(one) == 3
    assert one[2]["level"] == 2 and one[2]["data_source"] == "data" and one[2]["raw_prompt"] == "ab="
    assert tokenizer.decode(one[0]["input_ids"]) == "ab="


def test_long_prompts_are_left_out_and_counted_or_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "abc="}\n{"prompt": "abcdefgh="}\n')
    data = PromptDataset([str(file)], tokenizer, DataConfig(max_prompt_length=4))
    assert len(data) == 1 and data.filtered == 1
    with pytest.raises(DataError, match="row 2: the prompt has 9 tokens"):
        PromptDataset([str(file)], tokenizer, DataConfig(max_prompt_length=4, filter_overlong_prompts=False))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"prompt": "a="}\n{oops\n', "a.jsonl, row 2: not JSON"),
        ("a.jsonl", "[1]\n", "row 1: must be a JSON object"),
        ("a.jsonl", '{"question": "a="}\n', "row 1: there is no column 'prompt'"),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": "a"}]}\n', "no chat template"),
        ("a.parquet", "not parquet", "can't be read as Parquet"),
        ("a.tsv", "a,b", "the ending '.tsv'"),
    ],
)
def test_a_bad_file_or_row_is_named(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        PromptDataset([str(tmp_path / name)], tokenizer, DataConfig())
    with pytest.raises(DataError, match="there is no file"):
        PromptDataset([str(tmp_path / "missing.jsonl")], tokenizer, DataConfig())


def test_a_reasoning_gym_task_is_named_and_scored(tokenizer: PreTrainedTokenizerBase) -> None:
    pytest.importorskip("reasoning_gym")
    rows = [row for _, row in read_rows("reasoning_gym/chain_sum", "train", 5, seed=1)]
    others = [row for _, row in read_rows("reasoning_gym/chain_sum", "train", 5, seed=2)]
    assert len(rows) == 5 and rows != others
    row = {name: rows[0][name] for name in ("data_source", "extra_info")}
    right = rows[0]["reward_model"]["ground_truth"]
    answer = {"solution_str": f"<answer>{right}</answer>", "ground_truth": right}
    score = load_reward_function("reasoning_gym")
    assert score(**row, **answer) == 1
    assert score(**row, solution_str="no", ground_truth=right) < 0.1
    with pytest.raises(DataError, match="no_such_task"):
        list(read_rows("reasoning_gym/no_such_task", "train", 5, seed=1))


def test_a_datasets_folder_is_read_by_split(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    (tmp_path / "corpus").mkdir()
    for split in ("train", "test"):
        (tmp_path / "corpus" / f"{split}.jsonl").write_text(
            json.dumps({"prompt": "ab=", "split": split}) + "\n"
        )
    source = str(tmp_path / "corpus")
    assert PromptDataset([source], tokenizer, DataConfig(), split="test")[0]["split"] == "test"
    with pytest.raises(DataError, match="split nowhere"):
        PromptDataset([source], tokenizer, DataConfig(), split="nowhere")


def test_prompts_are_padded_on_the_left() -> None:
    batch = collate([{"input_ids": [5, 6], "x": 1}, {"input_ids": [7], "y": 2}], pad_token_id=0)
    assert torch.equal(torch.as_tensor(batch["input_ids"]), torch.tensor([[5, 6], [0, 7]]))
    assert torch.equal(torch.as_tensor(batch["attention_mask"]), torch.tensor([[True, True], [False, True]]))
    assert list(batch["x"]) == [1, None] and list(batch["y"]) == [None, 2]


def test_a_rows_seed_depends_on_run_step_prompt_and_repetition_alone() -> None:
    seeds = row_seeds(0, 3, ["a", "a", "b"])
    assert torch.equal(row_seeds(0, 3, ["b", "a", "a"]), seeds[[2, 0, 1]])
    others = [row_seeds(0, 4, ["a"]), row_seeds(1, 3, ["a"])]
    assert len({*seeds.tolist(), *(int(other) for other in others)}) == 5
    assert int(seeds.min()) >= 0


def test_mini_batches_keep_prompts_whole_and_visit_each_row_once_per_epoch() -> None:
    uids = [uid for uid in "abcde" for _ in range(3)]
    cut = list(mini_batch_rows(uids, prompts=2, epochs=2, seed=(0, 1)))
    assert [len(rows) for rows in cut] == [6, 6, 3] * 2
    for epoch in (cut[:3], cut[3:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(15))
    assert all(len({uids[row] for row in rows}) == len(rows) // 3 for rows in cut)
    assert np.concatenate(cut[:3]).tolist() != np.concatenate(cut[3:]).tolist()
    again = mini_batch_rows(uids, prompts=2, epochs=2, seed=(0, 1))
    assert all((a == b).all() for a, b in zip(cut, again, strict=True))
    (whole,) = mini_batch_rows(uids, prompts=5, epochs=1, seed=(0, 1))
    assert whole.tolist() == list(range(15))


def test_held_out_sums_are_never_trained_on() -> None:
    train, held_out = addition_rows()
    assert (len(train), len(held_out)) == (61, 20)
    texts = [str(row["prompt"]) for row in train + held_out]
    assert len(set(texts)) == 81
    assert copy_rows(3, 4, seed=0) == copy_rows(3, 4, seed=0) != copy_rows(3, 4, seed=1)


def test_which_prompts_share_a_mini_batch_does_not_depend_on_the_order_of_rows() -> None:
    uids = [uid for uid in "abcdef" for _ in range(2)]
    moved = [uids[i] for i in (8, 9, 0, 1, 10, 11, 2, 3, 6, 7, 4, 5)]
    one = [{uids[i] for i in rows} for rows in mini_batch_rows(uids, 2, 2, seed=(1, 2))]
    other = [{moved[i] for i in rows} for rows in mini_batch_rows(moved, 2, 2, seed=(1, 2))]
    assert one == other
