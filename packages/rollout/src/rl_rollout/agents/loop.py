"""Agent loops: one coroutine per row, token ids in and out, all rows sharing one engine's batches."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_protocol import DataProto
from rl_rollout.base import BaseRollout
from rl_rollout.batch.generation import Completion, derive_seed
from rl_rollout.batch.responses import row_samplings, row_seeds, unpad_prompts
from rl_rollout.config import SamplingConfig
from rl_rollout.service.rollout_service import RolloutService

logger = logging.getLogger(__name__)


@dataclass
class Transcript:
    """A row as it grows. Append-only: ids once in are never changed or re-encoded.

    `mask` is 1 on tokens the policy chose and 0 on observations; `limit` caps the response.
    """

    prompt_ids: list[int]
    limit: int
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: int = 0
    finish_reason: str = "stop"

    @property
    def ids(self) -> list[int]:
        """Prompt and response: what the engine continues."""
        return self.prompt_ids + self.response_ids

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self.limit - len(self.response_ids)

    def add_generated(self, completion: Completion) -> None:
        """Append what the policy said."""
        versions = completion.versions or [-1] * len(completion.token_ids)
        self._append(completion.token_ids, 1, completion.log_probs, versions)
        self.turns += 1
        self.finish_reason = completion.finish_reason

    def add_observation(self, ids: list[int]) -> bool:
        """Append what the environment said; False, and nothing appended, where no room would be left for
        an answer."""
        if len(ids) >= self.room:
            self.finish_reason = "length"
            return False
        self._append(ids, 0, [0.0] * len(ids), [-1] * len(ids))
        return True

    def _append(self, ids: list[int], flag: int, log_probs: list[float], versions: list[int]) -> None:
        self.response_ids += ids
        self.mask += [flag] * len(ids)
        self.log_probs += log_probs
        self.versions += versions


@dataclass(frozen=True)
class AgentRow:
    """What a loop knows of its row: sampling, seed, and the batch's non-tensor columns as `columns`."""

    sampling: SamplingConfig
    seed: int
    columns: Mapping[str, Any]


class AsyncEngine:
    """Lets the coroutines of rows share one engine: whoever waits is in its next step."""

    def __init__(self, service: RolloutService) -> None:
        self.service = service

    async def generate(self, transcript: Transcript, row: AgentRow) -> Completion:
        """Continue a row. Empty, with finish reason "length", where no room is left."""
        ids = transcript.ids
        if not ids:
            return Completion()
        seed = derive_seed(row.seed, transcript.turns) if transcript.turns else row.seed
        return await self.service.generate(ids, row.sampling, seed, limit=transcript.room)


class AgentLoop(ABC):
    """What happens in one row."""

    @abstractmethod
    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        """Extend the transcript until the row is done. An exception fails this row only."""


class SingleTurnLoop(AgentLoop):
    """The policy answers once."""

    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        """See `AgentLoop.run`."""
        transcript.add_generated(await engine.generate(transcript, row))


def run_agent_loop(
    rollout: BaseRollout, loop: AgentLoop, prompts: DataProto, *, row_timeout_s: float = 600.0
) -> DataProto:
    """Run `loop` on every row and return a batch like `BaseRollout.generate_sequences` does.

    Besides, columns `num_turns` and `agent_error` ("" where all went well). A row that raised or ran out of
    time is data: it keeps its tokens, its mask is 0 throughout, its finish reason is "error", and
    `meta_info["metrics"]` counts it as `agent/failed_rows/sum`, beside `agent/num_turns/mean` and `.../max`.
    What the engine raises is raised here, once every row has ended.
    """
    return asyncio.run(run_agent_rows(RolloutService(rollout), loop, prompts, row_timeout_s=row_timeout_s))


async def run_agent_rows(
    service: RolloutService, loop: AgentLoop, prompts: DataProto, *, row_timeout_s: float = 600.0
) -> DataProto:
    """`run_agent_loop` on a service, beside other rows."""
    rollout = service.rollout
    rollout.check_ready()
    engine = AsyncEngine(service)
    samplings = row_samplings(prompts, rollout.config.sampling())
    seeds = row_seeds(prompts) or rollout.derive_seeds(samplings)
    width = rollout.config.response_length
    transcripts = [Transcript(ids, width) for ids in unpad_prompts(prompts)]
    rows = [
        AgentRow(sampling, seed, {k: v[i] for k, v in prompts.non_tensor_batch.items()})
        for i, (sampling, seed) in enumerate(zip(samplings, seeds, strict=True))
    ]
    errors = await _run_rows(engine, loop, transcripts, rows, row_timeout_s)
    if service.failure is not None:
        raise service.failure
    batch = _collect(service, prompts, transcripts, errors)
    batch.meta_info["metrics"] = {"agent/failed_rows/sum": sum(map(bool, errors))} | _turns(transcripts)
    return batch


async def _run_rows(
    engine: AsyncEngine, loop: AgentLoop, transcripts: list[Transcript], rows: list[AgentRow], timeout: float
) -> list[str]:
    return list(
        await asyncio.gather(
            *(_run_row(engine, loop, t, row, timeout) for t, row in zip(transcripts, rows, strict=True))
        )
    )


async def _run_row(
    engine: AsyncEngine, loop: AgentLoop, transcript: Transcript, row: AgentRow, timeout: float
) -> str:
    """Run one row; the text of what went wrong, or ""."""
    try:
        await asyncio.wait_for(loop.run(transcript, row, engine), timeout)
    except Exception as error:  # a row's boundary: its failure is recorded, the batch goes on
        logger.warning("an agent row failed: %s", error, exc_info=True)
        return f"{type(error).__name__}: {error}"
    return ""


def _turns(transcripts: list[Transcript]) -> dict[str, float]:
    """Mean and largest number of turns; nothing where there is no row."""
    turns = [transcript.turns for transcript in transcripts]
    if not turns:
        return {}
    return {"agent/num_turns/mean": sum(turns) / len(turns), "agent/num_turns/max": max(turns)}


def _collect(
    service: RolloutService, prompts: DataProto, transcripts: list[Transcript], errors: list[str]
) -> DataProto:
    completions = [
        Completion(t.response_ids, t.log_probs, t.finish_reason, t.mask, t.versions)
        if not error
        else Completion(t.response_ids, t.log_probs, "error", [0] * len(t.mask), t.versions)
        for t, error in zip(transcripts, errors, strict=True)
    ]
    batch = service.rollout.answer(prompts, completions, service.version)
    columns = {"num_turns": [t.turns for t in transcripts], "agent_error": errors}
    return batch.union(DataProto.from_dict(non_tensors=columns))
