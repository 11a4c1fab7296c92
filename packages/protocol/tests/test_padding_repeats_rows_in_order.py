from __future__ import annotations

import pytest
import torch
from protocol_batches import assert_same, mixed_batch

from rl_protocol import DataProto, ShapeError, pad_dataproto_to_divisor, unpad_dataproto


def test_three_rows_to_eight_and_back() -> None:
    batch = mixed_batch(3)
    padded, pad_size = pad_dataproto_to_divisor(batch, 8)
    assert pad_size == 5 and padded.non_tensor_batch["length"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(batch) == 3
    assert_same(unpad_dataproto(padded, pad_size), batch)


def test_nothing_is_added_where_it_divides() -> None:
    padded, pad_size = pad_dataproto_to_divisor(mixed_batch(4), 2)
    assert pad_size == 0 and len(padded) == 4


def test_what_cannot_be_padded_is_refused() -> None:
    with pytest.raises(ShapeError, match="at least 1"):
        pad_dataproto_to_divisor(mixed_batch(4), 0)
    with pytest.raises(ShapeError, match="no row to repeat"):
        pad_dataproto_to_divisor(DataProto.from_dict({"x": torch.zeros(0, 2)}), 4)
    with pytest.raises(ShapeError, match="5 rows of padding"):
        unpad_dataproto(mixed_batch(4), 5)
