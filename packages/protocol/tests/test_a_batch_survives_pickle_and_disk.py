from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from protocol_batches import assert_same, mixed_batch
from tensordict import TensorDict

from rl_protocol import DataProto, FormatError, transfer_count

BATCHES = {
    "mixed": mixed_batch(5),
    "zero rows": mixed_batch(5).slice(0, 0),
    "empty axis": DataProto.from_dict({"x": torch.zeros(0, 3), "y": torch.zeros(0, dtype=torch.bfloat16)}),
    "no columns": DataProto(meta_info={"m": 1}),
    "no tensors": DataProto.from_dict({}, {"o": ["a", None]}),
    "no tensor columns": mixed_batch(3).select([], []),
    "dtypes": DataProto.from_dict(
        {
            str(dtype): torch.ones(2, 3).to(dtype)
            for dtype in (
                torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                torch.float16, torch.bfloat16, torch.float32, torch.float64,
                torch.float8_e4m3fn, torch.float8_e5m2,
            )
        }
    ),
    "nested": DataProto.from_dict({"x": TensorDict({"a": torch.ones(2, 3), "b": torch.zeros(2)}, [2])}),
    "objects": DataProto.from_dict(
        {},
        {
            "mixed": [
                {"t": torch.ones(2).bfloat16(), 3: (1, 2.5), "nan": float("nan"), "inf": float("inf")},
                [b"bytes", None, True, np.float32(1.5), np.array(["a", "bc"])],
            ],
            "strings": np.array(["x", "yz"]),
            "floats": np.array([1.0, np.nan]),
            "grid": np.arange(6).reshape(2, 3),
        },
        {"nested": {"t": torch.zeros(2, 0), "l": [1, {"$rl": "not a tag"}]}, "none": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_pickle_keeps_everything(name: str) -> None:
    batch = BATCHES[name]
    assert_same(pickle.loads(pickle.dumps(batch)), batch)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert_same(pickle.loads(data, buffers=buffers), batch)


@pytest.mark.parametrize("name", BATCHES)
def test_disk_keeps_everything(name: str, tmp_path: Path) -> None:
    batch = BATCHES[name]
    batch.save(tmp_path / "b")
    assert_same(DataProto.load(tmp_path / "b"), batch)


def test_pickled_tensors_go_out_of_band() -> None:
    batch = DataProto.from_dict(
        {"x": torch.zeros(1000, 100), "h": torch.zeros(1000, 100, dtype=torch.bfloat16)},
        {"arrays": [{"a": np.zeros(100_000), "t": torch.zeros(100_000)}] * 1000},
    )
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 20_000
    again = pickle.loads(data, buffers=buffers)
    assert again.batch["x"].data_ptr() == batch.batch["x"].data_ptr()
    first = again.non_tensor_batch["arrays"][0]
    assert np.shares_memory(first["a"], batch.non_tensor_batch["arrays"][0]["a"])
    assert first["t"].data_ptr() == batch.non_tensor_batch["arrays"][0]["t"].data_ptr()


def test_a_slice_sends_its_rows_only() -> None:
    batch = DataProto.from_dict({"x": torch.zeros(1000, 1000)})
    assert batch.slice(0, 10).nbytes == 40_000
    before = transfer_count()
    data = pickle.dumps(batch.slice(0, 10))
    pickle.loads(data)
    moved = transfer_count() - before
    assert (moved.sent, moved.received, moved.total) == (40_000, 40_000, 80_000) and len(data) < 42_000


def test_gradients_and_views_do_not_travel() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    batch = DataProto.from_dict({"x": weight.t()[:2]})
    again = pickle.loads(pickle.dumps(batch)).batch["x"]
    assert not again.requires_grad and torch.equal(again, torch.ones(2, 4))


def edit(path: Path, **changes: Any) -> None:
    document = json.loads((path / "batch.json").read_text())
    (path / "batch.json").write_text(json.dumps({**document, **changes}))


def test_a_newer_minor_version_is_read_and_a_major_refused(tmp_path: Path) -> None:
    mixed_batch(3).save(tmp_path / "b")
    edit(tmp_path / "b", version="1.7", unheard_of={"x": 1})
    assert_same(DataProto.load(tmp_path / "b"), mixed_batch(3))
    edit(tmp_path / "b", version="2.0")
    with pytest.raises(FormatError, match=r"version 2\.0.*1\.0"):
        DataProto.load(tmp_path / "b")


def test_what_is_not_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no batch"):
        DataProto.load(tmp_path)
    (tmp_path / "batch.json").write_text("{")
    with pytest.raises(FormatError, match="not valid JSON"):
        DataProto.load(tmp_path)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    with pytest.raises(FormatError, match="will not be replaced"):
        mixed_batch(1).save(tmp_path / "precious")
    assert (tmp_path / "precious" / "file").read_text() == "x"


class Foreign:
    def __reduce__(self) -> Any:
        raise AssertionError("must not be pickled")


def test_a_value_that_json_cannot_hold_is_named_and_the_old_file_stays(tmp_path: Path) -> None:
    mixed_batch(2).save(tmp_path / "b")
    bad = DataProto.from_dict({}, {"o": [{"deep": [Foreign()]}]})
    with pytest.raises(FormatError, match=r"o\[0\]\['deep'\]\[0\] is a Foreign"):
        bad.save(tmp_path / "b")
    assert_same(DataProto.load(tmp_path / "b"), mixed_batch(2))
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_no_pickle_is_ever_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BATCHES["objects"].save(tmp_path / "b")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(np, "load", refuse)
    assert_same(DataProto.load(tmp_path / "b"), BATCHES["objects"])


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Cut, flipped, overwritten, or with a piece twice."""
    start, size = int(rng.integers(len(content))), int(rng.integers(1, 9))
    kind = rng.integers(4)
    if kind == 0:
        return content[:start]
    if kind == 1:
        return content[:start] + bytes([content[start] ^ (1 << int(rng.integers(8)))]) + content[start + 1 :]
    if kind == 2:
        return content[:start] + rng.bytes(size) + content[start + size :]
    return content[:start] + content[start : start + size] + content[start:]


def test_a_thousand_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    nested = TensorDict({"a": torch.arange(6).reshape(3, 2)}, batch_size=[3])
    rows = torch.nested.nested_tensor([torch.ones(n) for n in (1, 3, 2)], layout=torch.jagged)
    batch = DataProto.from_dict(
        {"x": torch.ones(3, 2), "deep": nested, "ragged": rows},
        {"text": np.array(["a", "bc", "d"]), "any": [{"k": (1, b"x")}, None, [2.5]]},
        {"step": 4},
    )
    batch.save(tmp_path / "b")
    whole = {name: (tmp_path / "b" / name).read_bytes() for name in ("batch.json", "data.safetensors")}
    rng, refused = np.random.default_rng(0), 0
    for _ in range(1000):
        name = "batch.json" if rng.random() < 0.7 else "data.safetensors"
        (tmp_path / "b" / name).write_bytes(damaged(whole[name], rng))
        try:
            DataProto.load(tmp_path / "b")
        except FormatError:
            refused += 1
        (tmp_path / "b" / name).write_bytes(whole[name])
    assert refused > 300


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": [10**12], "tensors": {}},
        {"batch_size": [10**12]},
        {"batch_size": [-3]},
        {"batch_size": "many"},
        {"tensors": []},
        {"objects": {"o": {"$rl": "objects", "shape": [1], "dtype": "<U999999999", "items": ["a"]}}},
        {"meta_info": 7},
        {"rows": {}, "batch_size": {}},
    ],
)
def test_a_header_is_not_believed(tmp_path: Path, changes: dict[str, Any]) -> None:
    mixed_batch().save(tmp_path / "b")
    edit(tmp_path / "b", **changes)
    with pytest.raises(FormatError):
        DataProto.load(tmp_path / "b")


def test_deep_nesting_is_an_error_of_the_format(tmp_path: Path) -> None:
    mixed_batch().save(tmp_path / "b")
    file = tmp_path / "b" / "batch.json"
    file.write_text(
        file.read_text().replace('"meta_info": {', '"meta_info": {"x": ' + "[" * 20000 + "]" * 20000 + ",", 1)
    )
    with pytest.raises(FormatError):
        DataProto.load(tmp_path / "b")


def test_a_death_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    batch = mixed_batch()
    batch.save(tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / ".b.123.old")
    assert_same(DataProto.load(tmp_path / "b"), batch)
    batch.save(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
