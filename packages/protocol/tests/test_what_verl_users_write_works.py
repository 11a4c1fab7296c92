"""Names and habits of verl's users: methods of the batch, and the functions of `rl_protocol.verl_names`."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_protocol import ColumnConflictError, DataProto, MissingColumnError, ShapeError, verl_names
from rl_protocol.wire import decode_tensor


def batch() -> DataProto:
    return DataProto.from_dict(
        {"x": torch.arange(12).reshape(3, 4)},
        {"name": ["a", "b", "c"], "pair": [[1, 2], [3, 4], [5, 6]]},
        {"s": 1},
    )


def test_a_saved_batch_is_read_by_either_name(tmp_path: Path) -> None:
    batch().save_to_disk(tmp_path / "one")
    batch().save(tmp_path / "two")
    assert DataProto.load(tmp_path / "one").batch["x"].tolist() == batch().batch["x"].tolist()
    assert DataProto.load_from_disk(tmp_path / "two").meta_info == {"s": 1}


def test_columns_are_cut_into_rows() -> None:
    cut = batch().unfold_column_chunks(2, ["x", "pair"])
    assert cut.batch["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    assert cut.non_tensor_batch["pair"].tolist() == [[1], [2], [3], [4], [5], [6]]
    assert cut.non_tensor_batch["name"].tolist() == list("aabbcc")
    with pytest.raises(ShapeError, match="into 3 chunks"):
        batch().unfold_column_chunks(3, ["x"])
    with pytest.raises(MissingColumnError, match="nothing"):
        batch().unfold_column_chunks(2, ["nothing"])


def test_padding_appends_the_first_or_the_last_row() -> None:
    for candidate, name in (("", "a"), ("first", "a"), ("last", "c")):
        padded = batch()
        padded.padding(2, candidate)
        assert padded.non_tensor_batch["name"].tolist() == ["a", "b", "c", name, name]
    with pytest.raises(ShapeError, match="middle"):
        batch().padding(1, "middle")


def test_metrics_of_several_parts_are_one_dict_of_lists() -> None:
    def metrics(*values: object) -> object:
        return DataProto.concat([DataProto(meta_info={"metrics": value}) for value in values]).meta_info[
            "metrics"
        ]

    assert metrics([{"a": 1, "b": 2}], {"a": 3}) == {"a": [1, 3], "b": [2]}
    assert metrics(metrics({"a": 1}, {"a": 2}), {"a": 3}) == metrics({"a": 1}, metrics({"a": 2}, {"a": 3}))
    assert metrics(1.0, 2.0) == [1.0, 2.0]


def test_errors_are_also_those_that_verl_raises() -> None:
    with pytest.raises(AssertionError, match="num_batch_dims"):
        DataProto.from_dict({"x": torch.zeros(2, 2)}, num_batch_dims=2, auto_padding=True)
    with pytest.raises(AssertionError, match="Conflicting values for meta_info key 'a'"):
        DataProto.concat([DataProto(meta_info={"a": 1}), DataProto(meta_info={"a": 2})])
    with pytest.raises(TypeError, match="num_workers"):
        batch().make_iterator(1, 1, dataloader_kwargs={"shuffle": False, "num_workers": 2})


def test_unions_of_dicts_work_in_place_or_change_nothing() -> None:
    left = TensorDict({"x": torch.zeros(2)}, batch_size=[2])
    verl_names.union_tensor_dict(left, TensorDict({"x": torch.zeros(2), "y": torch.ones(2)}, batch_size=[2]))
    assert set(left.keys()) == {"x", "y"}
    with pytest.raises(AssertionError):
        verl_names.union_tensor_dict(
            left, TensorDict({"z": torch.ones(2), "y": torch.zeros(2)}, batch_size=[2])
        )
    assert set(left.keys()) == {"x", "y"}
    arrays = verl_names.union_numpy_dict({"a": np.array([1.0, np.nan])}, {"a": np.array([1.0, np.nan])})
    assert list(arrays) == ["a"]


def test_rows_are_collated_and_tensors_serialized() -> None:
    again = verl_names.collate_fn(list(batch()))
    assert again.batch["x"].tolist() == batch().batch["x"].tolist()
    assert again.non_tensor_batch["name"].tolist() == ["a", "b", "c"]
    for tensor in (torch.randn(2, 3).bfloat16(), torch.zeros(0, 3), torch.tensor(3), torch.tensor([True])):
        back = verl_names.deserialize_single_tensor(verl_names.serialize_single_tensor(tensor))
        assert back.dtype == tensor.dtype and back.shape == tensor.shape and torch.equal(back, tensor)
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    data = TensorDict({"j": jagged}, batch_size=[2])
    found = verl_names.deserialize_tensordict(verl_names.serialize_tensordict(data))["j"]
    assert found.layout == torch.jagged and [len(row) for row in found.unbind()] == [2, 3]


def test_one_name_is_one_column() -> None:
    with pytest.raises(ColumnConflictError, match="'x' is a tensor and an object column"):
        DataProto.from_dict({"x": torch.zeros(2)}, {"x": [1, 2]})


def test_a_clone_shares_no_container() -> None:
    table = defaultdict(list, a=[1])
    values = [OrderedDict(a=[1]), table, {1}]
    clone = DataProto(non_tensor_batch={"v": values}).clone().non_tensor_batch["v"]
    assert [type(value) for value in clone] == [OrderedDict, defaultdict, set] and clone[1]["new"] == []
    clone[0]["a"].append(2)
    clone[1]["a"].append(2)
    clone[2].add(2)
    assert values == [OrderedDict(a=[1]), {"a": [1]}, {1}]


def test_read_only_memory_is_decoded_without_a_warning_in_any_thread() -> None:
    array = np.arange(4.0)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        threads = [threading.Thread(target=decode_tensor, args=(array, None)) for _ in range(4)]
        [thread.start() for thread in threads]
        tensor = decode_tensor(array, None)
        [thread.join() for thread in threads]
    assert tensor.data_ptr() == array.ctypes.data
    del array
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
