"""From prompts to rows and from completions to a padded batch: the only place where padding is decided."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from rl_protocol import DataProto
from rl_rollout.batch.generation import Completion
from rl_rollout.config import SamplingConfig
from rl_rollout.errors import RolloutDataError

PROMPT_KEYS = ("input_ids", "attention_mask")


def unpad_prompts(prompts: DataProto) -> list[list[int]]:
    """Token ids of each row of `input_ids` [B, P] where `attention_mask` [B, P] is set."""
    if prompts.batch is None or any(key not in set(prompts.batch.keys()) for key in PROMPT_KEYS):
        raise RolloutDataError(f"prompts need the tensors {', '.join(PROMPT_KEYS)} of shape [B, P]")
    ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"].bool()
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise RolloutDataError(
            f"input_ids {tuple(ids.shape)} and attention_mask {tuple(mask.shape)}: both must be [B, P]"
        )
    return [row[keep].tolist() for row, keep in zip(ids.cpu(), mask.cpu(), strict=True)]


def length_mask(lengths: Tensor, width: int) -> Tensor:
    """[B, width] int64, 1 on the first `lengths[b]` positions: right for a pad id that is also the EOS."""
    return (torch.arange(width) < lengths[:, None]).long()


def eos_response_mask(responses: Tensor, eos_ids: Collection[int]) -> Tensor:
    """[B, R] int64, 1 up to and including the first EOS of each row (all ones where there is none).

    For responses that come without lengths. Works where the pad token is the EOS token.
    """
    is_eos = torch.isin(responses, torch.tensor(sorted(eos_ids), dtype=responses.dtype))
    before = is_eos.long().cumsum(-1) - is_eos.long()
    return (before == 0).long()


def pad_right(rows: Sequence[Sequence[float]], width: int, fill: float, dtype: torch.dtype) -> Tensor:
    """[B, width] with each row on the left and `fill` behind it."""
    out = torch.full((len(rows), width), fill, dtype=dtype)
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = torch.tensor(row, dtype=dtype)
    return out


def to_batch(
    prompts: DataProto,
    completions: Sequence[Completion],
    response_length: int,
    pad_id: int,
    version: int = -1,
) -> DataProto:
    """Prompts [B, P] and B completions as one batch of width L = P + R.

    Position ids count real tokens only, so a left-padded prompt starts at 0. Log-probs are 0 where
    `response_mask` is 0. Per row, `response_lengths` counts tokens and `num_actions` those that the policy
    chose. The prompts' own non-tensor columns are not repeated.

    With a `version` of 0 or more, that of the engine's weights, two columns say which weights drew what:
    `token_versions` [B, R], -1 where `response_mask` is 0, and `oldest_version` [B].
    """
    if prompts.batch is None:
        raise RolloutDataError("prompts have no tensors")
    device = prompts.batch["input_ids"].device
    prompt_ids, prompt_mask = prompts.batch["input_ids"].cpu(), prompts.batch["attention_mask"].cpu().long()
    lengths = torch.tensor([len(c.token_ids) for c in completions], dtype=torch.long)
    if completions and int(lengths.max()) > response_length:
        raise RolloutDataError(
            f"a response has {int(lengths.max())} tokens: at most response_length={response_length} fit"
        )
    attention_mask = torch.cat([prompt_mask, length_mask(lengths, response_length)], dim=-1)
    chosen = pad_right(
        [c.mask or [1] * len(c.token_ids) for c in completions], response_length, 0, torch.long
    )
    responses = pad_right([c.token_ids for c in completions], response_length, pad_id, torch.long)
    log_probs = pad_right([c.log_probs for c in completions], response_length, 0.0, torch.float32)
    batch = DataProto.from_dict(
        tensors={
            "prompts": prompt_ids,
            "responses": responses,
            "input_ids": torch.cat([prompt_ids, responses], dim=-1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(-1) - 1).clamp_min(0),
            "response_mask": chosen,
            "rollout_log_probs": log_probs.masked_fill(chosen == 0, 0.0),
            "response_lengths": lengths,
            "num_actions": chosen.sum(-1),
        },
        non_tensors={"finish_reason": [c.finish_reason for c in completions]},
    )
    if version >= 0:
        batch = batch.union(_versions(completions, chosen, version))
    return batch if device.type == "cpu" else batch.to(device)


def _versions(completions: Sequence[Completion], chosen: Tensor, version: int) -> DataProto:
    """A row without a token that the policy chose is as old as the present weights."""
    drawn = pad_right([c.versions for c in completions], chosen.shape[1], -1, torch.long)
    drawn = drawn.masked_fill(chosen == 0, -1)
    oldest = drawn.masked_fill(chosen == 0, version).amin(-1)
    return DataProto.from_dict({"token_versions": drawn, "oldest_version": oldest})


def row_samplings(prompts: DataProto, default: SamplingConfig) -> list[SamplingConfig]:
    """The sampling of each row: its own column `sampling`, else `meta_info["sampling"]`, else the default."""
    rows = len(prompts)
    column = prompts.non_tensor_batch.get("sampling")
    found = [prompts.meta_info.get("sampling", default)] * rows if column is None else list(column)
    for value in found:
        if not isinstance(value, SamplingConfig):
            raise RolloutDataError(
                f"sampling must be a SamplingConfig, got {type(value).__name__}: build one, "
                "so that a misspelt option is an error"
            )
    return found


def row_seeds(prompts: DataProto) -> list[int] | None:
    """`seeds` [B] int64 where the batch brings them."""
    if prompts.batch is None or "seeds" not in set(prompts.batch.keys()):
        return None
    return [int(seed) for seed in prompts.batch["seeds"].tolist()]
