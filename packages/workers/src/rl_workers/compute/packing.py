"""Packed micro-batches: the tokens of many rows as one sequence, prompts shared, nothing padded.

A row is a prompt and a response. Rows that have the same prompt form a *unit*: the prompt's tokens stand
once, the responses follow. The last token of a row predicts nothing and is left out, so a row costs its
length minus one. A row without a trainable token is left out entirely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rl_workers.compute.attention import AttentionPlan, Unit
from rl_workers.errors import BatchError


@dataclass(frozen=True)
class RowTable:
    """What packing needs to know of a padded batch, computed once per batch, on the CPU.

    ``prompts[i]`` and ``responses[i]`` are the flat positions of row i's tokens in ``input_ids``, and
    ``trained[i]`` the response columns whose ``response_mask`` is 1 with their place in the response.
    ``key[i]`` is equal for two rows exactly if their prompts are equal token by token.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    response_width: int
    prompts: list[Tensor]
    responses: list[Tensor]
    trained: list[Tensor]
    places: list[Tensor]
    key: list[bytes]
    lengths: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompts)

    def is_active(self, row: int) -> bool:
        """Whether the row has a token to train or to score."""
        return self.trained[row].numel() > 0


def tabulate_rows(
    input_ids: Tensor, attention_mask: Tensor, response_mask: Tensor, position_ids: Tensor | None = None
) -> RowTable:
    """Read the rows of a padded batch.

    Args:
        input_ids: ``[B, L]`` integers; the last R columns are the response, the others the prompt.
        attention_mask: ``[B, L]``, 1 on real tokens, wherever the padding stands.
        response_mask: ``[B, R]``, 1 on the tokens that the policy chose.
        position_ids: ``[B, L]``; absent: counted from the attention mask.

    Raises:
        BatchError: shapes disagree, a row has no prompt, or the response mask marks a pad token.
    """
    rows, length = input_ids.shape
    width = response_mask.shape[1]
    if attention_mask.shape != input_ids.shape or response_mask.shape[0] != rows or width > length:
        raise BatchError(
            f"input_ids {tuple(input_ids.shape)}, attention_mask {tuple(attention_mask.shape)} and "
            f"response_mask {tuple(response_mask.shape)} disagree: expected [B, L], [B, L], [B, R], R <= L"
        )
    ids, real = input_ids.cpu(), attention_mask.cpu().bool()
    chosen = response_mask.cpu().bool()
    if bool((chosen & ~real[:, length - width :]).any()):
        raise BatchError(
            "response_mask is 1 on a position whose attention_mask is 0: a pad token cannot be trained"
        )
    if position_ids is None:
        position_ids = (real.long().cumsum(1) - 1).clamp_min(0)
    table = RowTable(ids, position_ids.cpu(), real, width, [], [], [], [], [])
    for row in range(rows):
        _append_row(table, row, chosen[row])
    return table


def _append_row(table: RowTable, row: int, chosen: Tensor) -> None:
    length = table.input_ids.shape[1]
    boundary = length - table.response_width
    prompt = table.attention_mask[row, :boundary].nonzero()[:, 0]
    response = table.attention_mask[row, boundary:].nonzero()[:, 0]
    columns = chosen.nonzero()[:, 0]
    if prompt.numel() == 0 and columns.numel():
        raise BatchError(
            f"row {row} has a response but no prompt token: its first token has nothing to follow"
        )
    table.prompts.append(prompt + row * length)
    table.responses.append(response + row * length + boundary)
    table.trained.append(columns)
    table.places.append(torch.searchsorted(response, columns))
    table.key.append(table.input_ids[row, prompt].numpy().tobytes())
    table.lengths.append(prompt.numel() + response.numel())


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch as the model sees it.

    ``input_ids`` and ``position_ids`` are ``[1, T]`` (``[b, L]`` if padded). The N predictions are listed in
    the order of ``predict``: hidden state ``predict[j]`` of the flattened sequence predicts ``labels[j]``,
    which is token ``columns[j]`` of the response of row ``rows[j]`` of the batch.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor | None
    plan: AttentionPlan | None
    predict: Tensor
    labels: Tensor
    rows: Tensor
    columns: Tensor
    is_dummy: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return self.input_ids.numel()

    def to(self, device: torch.device) -> PackedBatch:
        """The same micro-batch with its model inputs on ``device``."""
        mask = None if self.attention_mask is None else self.attention_mask.to(device)
        moved = {k: getattr(self, k).to(device) for k in ("input_ids", "position_ids", "predict", "labels")}
        plan = None if self.plan is None else self.plan.to(device)
        return replace(self, attention_mask=mask, plan=plan, **moved)

    def scatter(self, values: Tensor, out: Tensor) -> None:
        """Write ``values[j]`` to ``out[rows[j], columns[j]]`` (a dummy micro-batch writes nothing)."""
        if not self.is_dummy:
            out[self.rows.to(out.device), self.columns.to(out.device)] = values.to(out)


def dummy_batch() -> PackedBatch:
    """One token through the model, for a rank that takes part in a collective without having rows."""
    one = torch.zeros(1, dtype=torch.long)
    plan = AttentionPlan([Unit(1, ())])
    return PackedBatch(one[None], one[None], None, plan, one, one, one, one, is_dummy=True)


def pack_rows(table: RowTable, rows: Sequence[int], *, share_prompts: bool = True) -> PackedBatch:
    """Pack the given rows; neighbours with equal prompts share one copy of it if ``share_prompts``."""
    active = [row for row in rows if table.is_active(row)]
    if not active:
        return dummy_batch()
    source: list[Tensor] = []
    predict: list[Tensor] = []
    units: list[Unit] = []
    offset = 0
    for group in _runs(table, active, share_prompts):
        prompt = table.prompts[group[0]]
        bodies = [table.responses[row][:-1] for row in group]
        source += [prompt, *bodies]
        units.append(Unit(prompt.numel(), tuple(body.numel() for body in bodies)))
        start = offset + prompt.numel()
        for row, body in zip(group, bodies, strict=True):
            place = table.places[row]
            predict.append(torch.where(place > 0, start + place - 1, offset + prompt.numel() - 1))
            start += body.numel()
        offset = start
    flat = torch.cat(source)
    ids, positions = table.input_ids.reshape(-1), table.position_ids.reshape(-1)
    batch_rows = torch.cat([torch.full_like(table.trained[row], row) for row in active])
    columns = torch.cat([table.trained[row] for row in active])
    targets = torch.cat([table.responses[row][table.places[row]] for row in active])
    order = torch.cat(predict).argsort(stable=True)
    return PackedBatch(
        input_ids=ids[flat][None],
        position_ids=positions[flat][None],
        attention_mask=None,
        plan=AttentionPlan(units),
        predict=torch.cat(predict)[order],
        labels=ids[targets][order],
        rows=batch_rows[order],
        columns=columns[order],
    )


def pack_sequences(sequences: Sequence[Tensor], rows: Sequence[int]) -> PackedBatch:
    """Pack whole sequences of token ids, with one prediction each, at the last token."""
    if not rows:
        return dummy_batch()
    chosen = [sequences[row] for row in rows]
    lengths = torch.tensor([ids.numel() for ids in chosen])
    return PackedBatch(
        input_ids=torch.cat(chosen)[None],
        position_ids=torch.cat([torch.arange(ids.numel()) for ids in chosen])[None],
        attention_mask=None,
        plan=AttentionPlan([Unit(ids.numel(), ()) for ids in chosen]),
        predict=lengths.cumsum(0) - 1,
        labels=torch.zeros_like(lengths),
        rows=torch.tensor(list(rows)),
        columns=torch.zeros_like(lengths),
    )


def pad_rows(table: RowTable, rows: Sequence[int]) -> PackedBatch:
    """The given rows as a padded ``[b, L]`` batch, for models that cannot run packed."""
    active = [row for row in rows if table.is_active(row)]
    if not active:
        return replace(dummy_batch(), plan=None, attention_mask=torch.ones(1, 1, dtype=torch.long))
    length = table.input_ids.shape[1]
    index = torch.tensor(active)
    predict = []
    for slot, row in enumerate(active):
        flat = torch.cat([table.prompts[row], table.responses[row]]) - row * length
        place = table.prompts[row].numel() + table.places[row]
        predict.append(flat[place - 1] + slot * length)
    targets = torch.cat([table.responses[row][table.places[row]] for row in active])
    return PackedBatch(
        input_ids=table.input_ids[index],
        position_ids=table.position_ids[index],
        attention_mask=table.attention_mask[index].long(),
        plan=None,
        predict=torch.cat(predict),
        labels=table.input_ids.reshape(-1)[targets],
        rows=torch.cat([torch.full_like(table.trained[row], row) for row in active]),
        columns=torch.cat([table.trained[row] for row in active]),
    )


def _runs(table: RowTable, rows: Sequence[int], share: bool) -> list[list[int]]:
    """Cut ``rows`` where the prompt changes."""
    runs: list[list[int]] = []
    for row in rows:
        if share and runs and table.key[runs[-1][0]] == table.key[row]:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs
