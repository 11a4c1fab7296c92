"""Whatever a file holds is read, or refused by file, line and rule; nothing of it breaks a run later."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl_protocol import DataProto
from rl_trainer.config.tree import DataConfig
from rl_trainer.data.dataset import PromptDataset, collate, to_prompts
from rl_trainer.data.rows import OWN, RESERVED, checked
from rl_trainer.data.sources import check_source, read_rows
from rl_trainer.errors import DataError
from rl_trainer.models.tiny import make_tiny_model

CHAT = [{"role": "user", "content": "ab="}]
ROW = {"prompt": "ab=", "n": 1}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return loaded


def read(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(str(path), "train", 0, 0)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b"\xef\xbb\xbf" + json.dumps(ROW).encode()),
        ("a.JSONL", json.dumps(ROW).encode() + b"\r\n\r\n"),
        ("a.json", json.dumps([ROW]).encode()),
        ("a.json", b"\xef\xbb\xbf" + json.dumps([ROW], indent=2).encode()),
        ("a.json", json.dumps(ROW).encode() + b"\n"),
    ],
)
def test_the_forms_of_json_give_the_same_rows(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) == [ROW]


def test_csv_is_read_as_text_with_quotes_lines_and_objects(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    truth = '"{""ground_truth"": ""7""}"'
    file.write_text(f'\ufeffprompt,reward_model,n\n"a, ""b""\nc",{truth},1\nü,,2\n', encoding="utf-8")
    one, two = (checked(row, "prompt", "here") for row in read(file))
    assert (one["raw_prompt"], one["reward_model"], one["n"]) == ('a, "b"\nc', {"ground_truth": "7"}, "1")
    assert (two["raw_prompt"], two["reward_model"]) == ("ü", {})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"prompt": "a"}\n{"prompt": "ü"}'.encode("latin-1"),
            "line 2: not UTF-8 .byte 0xfc at place 13",
        ),
        ("a.csv", "prompt\nü".encode("latin-1"), "line 2: not UTF-8"),
        ("a.json", "[]".encode("utf-16"), "line 1: not UTF-8"),
        ("a.json", b'[{"prompt": "a"}, 3]', "row 2: must be a JSON object, not '3'"),
        ("a.json", b'[{"prompt": "a"}', "not JSON"),
        ("a.jsonl", b"[" * 100_000, "row 1: not JSON"),
        ("a.csv", b"prompt,n\na,1,2\n", "line 2: not as many values"),
        ("a.csv", b"prompt,n\na\n", "line 2: not as many values"),
        ("a.csv", b'prompt\n"a\n', "not CSV"),
        ("a.parquet", b"PAR1", "can't be read as Parquet"),
    ],
)
def test_a_file_that_can_t_be_read_is_named_with_its_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["train.txt", "train.jsonl.gz", "train", "train.tsv"])
def test_a_file_of_another_kind_is_named_at_once_with_the_kinds(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"not one that we read .*jsonl.*csv.*parquet"):
        check_source("data.train_files", str(tmp_path / name))


@pytest.mark.parametrize("source", ["/no/such/file", "./nowhere/data", "/no/such.txt", "~/data", "x.jsonl"])
def test_a_path_that_leads_nowhere_is_no_name_of_a_dataset(source: str) -> None:
    with pytest.raises(DataError, match="there is no file"):
        check_source("data.train_files", source)


def test_parquet_fills_structs_with_nulls_and_they_count_as_missing(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    named = [{"role": "user", "content": "a", "name": "x"}, {"role": "user", "content": "b"}]
    rows = [
        {"prompt": named, "reward_model": None, "extra_info": None, "data_source": None},
        {
            "prompt": CHAT,
            "reward_model": {"ground_truth": "7"},
            "extra_info": {"day": day},
            "data_source": "d",
        },
        {"prompt": CHAT, "reward_model": {"ground_truth": None}},
    ]
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    one, two, three = (checked(row, "prompt", "here") for row in read(file))
    assert one["raw_prompt"] == rows[0]["prompt"] and one["data_source"] == "data"
    assert two["extra_info"] == {"day": "2026-01-02"} and two["reward_model"] == {"ground_truth": "7"}
    assert one["reward_model"] == one["extra_info"] == {} and three["reward_model"] == {}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": [{"role": "user", "content": None}]},
            "message 1: a message of the role 'user' has no content",
        ),
        (
            {"prompt": [*CHAT, {"role": "assistant"}]},
            "message 2: a message of the role 'assistant' has no content",
        ),
        ({"prompt": [{"role": "user", "content": 7}]}, "content must be text"),
        ({"prompt": [{"content": "a"}]}, "message 1: must be {role, content}"),
        ({"prompt": ["a"]}, "message 1: must be {role, content}"),
        ({"prompt": ""}, "must be a non-empty string"),
        ({"prompt": []}, "must be a non-empty string"),
        ({"prompt": None}, "must be a non-empty string"),
        ({"prompt": {"role": "user"}}, "must be a non-empty string"),
        ({"prompt": "a \ud83d"}, "column 'prompt': character 2 is half of a surrogate pair"),
        ({"prompt": [{"role": "user", "content": "\udc00"}]}, "column 'prompt': character 0 is half"),
        ({"prompt": "a", "extra_info": {"note": ["\ud800"]}}, "column 'extra_info': character 0 is half"),
        ({"prompt": "a", "reward_model": ["7"]}, "column 'reward_model' must be an object"),
        ({"prompt": "a", "reward_model": "7"}, "column 'reward_model' must be an object"),
        ({"prompt": "a", "reward_model": "rule"}, "column 'reward_model' must be an object, or one as JSON"),
        ({"prompt": "a", "extra_info": 7}, "column 'extra_info' must be an object"),
        ({"prompt": "a", "data_source": 7}, "column 'data_source' must be text"),
        ({"question": "a"}, "there is no column 'prompt'"),
    ],
)
def test_a_row_that_can_t_be_used_is_named_while_it_is_read(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^a.jsonl, row 3.*{message}"):
        checked(row, "prompt", "a.jsonl, row 3")


@pytest.mark.parametrize("form", [{"ground_truth": "7"}, '{"ground_truth": "7"}', None, "null", {}])
def test_the_forms_of_a_reward_model_are_one(form: object) -> None:
    found = checked({"prompt": "a", "reward_model": form}, "prompt", "here")["reward_model"]
    assert found == ({"ground_truth": "7"} if form and form != "null" else {})


def test_a_dataset_s_columns_never_meet_those_of_the_batch(tokenizer: PreTrainedTokenizerBase) -> None:
    row = {"prompt": "ab=", **dict.fromkeys(RESERVED, "mine"), "level": 3}
    found = checked(row, "prompt", "here")
    assert found["raw_prompt"] == "ab=" and found["level"] == 3
    assert {name for name in found if name.startswith(OWN)} == {OWN + name for name in RESERVED}
    made = {name: [1] for name in RESERVED - {"raw_prompt", "uid", "input_ids", "attention_mask"}}
    prompts = to_prompts(collate([found | {"input_ids": [1]}], 0), ["0-0"])
    joined = prompts.union(DataProto.from_dict(non_tensors={k: np.array(v, object) for k, v in made.items()}))
    assert joined.non_tensor_batch[OWN + "responses"][0] == "mine"


def test_a_prompt_of_a_megabyte_is_long_and_nothing_else(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"prompt": "ab" * 500_000}) + "\n" + json.dumps(ROW))
    data = PromptDataset([str(file)], tokenizer, DataConfig(max_prompt_length=4))
    assert len(data) == 1 and data.filtered == 1


TEXT = st.text(st.characters(), max_size=6) | st.sampled_from(
    ["\ud800", "", "user", "{}", "[1]", "null", "\0"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["prompt", "reward_model", "extra_info", "data_source", "responses", "x"])
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": TEXT, "content": JSON, "tool_calls": JSON}), max_size=2
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(NAMES, JSON | MESSAGES, max_size=4))
def test_a_row_of_anything_is_usable_or_refused(row: dict[str, Any]) -> None:
    try:
        found = checked(row, "prompt", "here")
    except DataError as error:
        assert str(error).startswith("here")
    else:
        json.dumps(found, ensure_ascii=False).encode()
        assert isinstance(found["reward_model"], dict) and isinstance(found["extra_info"], dict)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60) | JSON.map(lambda x: json.dumps(x).encode()),
    ending=st.sampled_from(["jsonl", "json", "csv", "parquet"]),
)
def test_a_file_of_anything_is_read_or_refused(tmp_path: Path, content: bytes, ending: str) -> None:
    file = tmp_path / f"a.{ending}"
    file.write_bytes(content)
    try:
        rows = read(file)
    except DataError as error:
        assert str(file) in str(error)
    else:
        assert all(isinstance(row, dict) for row in rows)
