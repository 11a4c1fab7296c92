"""Batches that the tests share."""

from __future__ import annotations

import numpy as np
import torch

from rl_protocol import DataProto, values_equal


def mixed_batch(rows: int = 5, seed: int = 0) -> DataProto:
    """A batch with one column of every kind."""
    generator = torch.Generator().manual_seed(seed)
    ragged = [torch.arange(float(row % 3)) + row for row in range(rows)] or [torch.zeros(0)]
    jagged = torch.nested.nested_tensor(ragged, layout=torch.jagged)
    tensors = {
        "ids": torch.randint(0, 99, (rows, 3), generator=generator),
        "half": torch.randn(rows, 2, generator=generator).to(torch.bfloat16),
        "mask": torch.rand(rows, generator=generator) > 0.5,
    }
    if rows:
        tensors["ragged"] = jagged
    names = [f"uid-{row}" for row in range(rows)]
    notes = [{"turn": row, "scores": np.arange(row, dtype=np.float32)} for row in range(rows)]
    return DataProto.from_dict(tensors, {"uid": names, "note": notes, "length": np.arange(rows)}, {"step": 3})


def assert_same(left: DataProto, right: DataProto) -> None:
    """Equal rows, columns, dtypes and meta_info."""
    assert len(left) == len(right)
    assert (left.batch is None) == (right.batch is None)
    if left.batch is not None and right.batch is not None:
        assert set(left.batch.keys()) == set(right.batch.keys())
        for name in left.batch.keys():  # noqa: SIM118
            assert values_equal(left.batch[name], right.batch[name]), name
    assert left.non_tensor_batch.keys() == right.non_tensor_batch.keys()
    for name, column in left.non_tensor_batch.items():
        assert values_equal(column, right.non_tensor_batch[name]), name
    assert values_equal(left.meta_info, right.meta_info)
