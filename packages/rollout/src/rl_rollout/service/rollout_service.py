"""An engine that answers row by row, and takes new weights while rows are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, get_args

from rl_protocol import DataProto
from rl_rollout.base import BaseRollout, NamedTensors
from rl_rollout.batch.generation import Completion, GenerationRequest, derive_seed, usable_seed
from rl_rollout.batch.responses import row_samplings, row_seeds, unpad_prompts
from rl_rollout.config import SamplingConfig
from rl_rollout.errors import RolloutConfigError, RolloutDataError

PauseMode = Literal["keep", "wait", "abort"]


@dataclass(eq=False)
class _Row:
    """A row under way: what was asked, what it has so far, and who waits for it."""

    prompt_ids: list[int]
    sampling: SamplingConfig
    seed: int
    limit: int
    request_id: str
    future: asyncio.Future[Completion]
    done: Completion = field(default_factory=lambda: Completion(finish_reason=""))

    @property
    def request(self) -> GenerationRequest:
        """What is still to be generated. A row that was cut goes on with random numbers of its own."""
        got = len(self.done.token_ids)
        seed = usable_seed(derive_seed(self.seed, got) if got else self.seed)
        ids = self.prompt_ids + self.done.token_ids
        return GenerationRequest(ids, self.sampling, seed, self.limit - got, interruptible=True)

    def add(self, part: Completion, version: int) -> None:
        """Append what weights of `version` drew."""
        self.done.token_ids += part.token_ids
        self.done.log_probs += part.log_probs
        self.done.versions += [version] * len(part.token_ids)
        self.done.finish_reason = part.finish_reason


class RolloutService:
    """Many coroutines share one engine: whoever waits is in its next step.

    All methods belong to one event loop, and the engine steps in it: nothing changes in the middle of a step.
    `version` is that of the weights, -1 before `update_weights` has said one.

    Args:
        rollout: the engine. One of a single rank: with tensor parallelism the ranks' coroutines would be
            scheduled differently.

    Raises:
        RolloutConfigError: the engine spans several ranks.
    """

    def __init__(self, rollout: BaseRollout) -> None:
        if rollout.config.tensor_model_parallel_size > 1:
            raise RolloutConfigError(
                f"tensor_model_parallel_size={rollout.config.tensor_model_parallel_size}: rows that come and "
                "go one by one need an engine of one rank; set it to 1"
            )
        self.rollout = rollout
        self.version = -1
        self.generated = self.cut = 0
        self._rows: dict[str, _Row] = {}
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()
        self._stopped = False
        self.failure: Exception | None = None  # what ended rows that were under way; no row's own
        self._pump: asyncio.Task[None] | None = None

    async def generate(
        self,
        token_ids: list[int],
        sampling: SamplingConfig,
        seed: int,
        *,
        limit: int | None = None,
        request_id: str = "",
    ) -> Completion:
        """Continue `token_ids`; `Completion.versions` says which weights drew each token.

        Args:
            limit: most new tokens, where the engine's own limit is not lower.
            request_id: what `abort` calls the row; several may have the same.

        Returns:
            No token, with finish reason "length" or "empty", where there is no room or no prompt.
        """
        room = self.rollout.token_limit(len(token_ids), sampling)
        room = room if limit is None else min(limit, room)
        if not token_ids or room <= 0:
            return Completion(finish_reason="length" if token_ids else "empty")
        await self._open.wait()
        self.rollout.check_ready()
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        row = _Row(token_ids, sampling, seed, room, request_id, future)
        self._enter(row)
        try:
            return await future
        except asyncio.CancelledError:
            self._end([key for key, other in self._rows.items() if other is row])
            raise

    async def generate_sequences(self, prompts: DataProto) -> DataProto:
        """`BaseRollout.generate_sequences`, beside other rows; with the columns of versions of `to_batch`."""
        rollout = self.rollout
        samplings = row_samplings(prompts, rollout.config.sampling())
        seeds = row_seeds(prompts) or rollout.derive_seeds(samplings)
        rows = zip(unpad_prompts(prompts), samplings, seeds, strict=True)
        completions = await asyncio.gather(*(self.generate(*row) for row in rows))
        return rollout.answer(prompts, completions, self.version)

    def abort(self, request_ids: Collection[str]) -> int:
        """End rows with the tokens they have, finish reason "abort"; how many there were."""
        wanted = set(request_ids)
        keys = [key for key, row in self._rows.items() if row.request_id in wanted]
        for row in self._end(keys):
            row.future.set_result(row.done)
        return len(keys)

    async def pause(self, mode: PauseMode) -> None:
        """Let no new row in until `resume`.

        "keep" stops those under way where they are, "wait" returns once they are done, "abort" ends them
        with the tokens they have.
        """
        if mode not in get_args(PauseMode):
            raise RolloutDataError(f"mode={mode!r}: must be one of {', '.join(get_args(PauseMode))}")
        self._open.clear()
        if mode == "wait":
            await self._idle.wait()
        elif mode == "abort":
            self.abort({row.request_id for row in self._rows.values()})
        self._stopped = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._stopped = False
        self._open.set()
        self._start()

    def update_weights(self, version: int, named_tensors: NamedTensors) -> None:
        """Replace the weights, between two steps; see `BaseRollout.load_weights`.

        Rows under way go on with the tokens they have, their keys and values computed anew: what they draw
        from now on is what the new weights would draw. A row with stop strings starts again, since one of
        them may lie across the cut.

        Args:
            version: of the new weights, at least 0 and never less than before.
        """
        least = max(self.version, 0)
        if version < least:
            raise RolloutDataError(f"version={version}: must be at least {least}, and never fall")
        rows = self._end(list(self._rows))
        self.cut += sum(bool(row.done.token_ids) for row in rows)
        try:
            self.rollout.update_weights(named_tensors)
        except Exception as error:
            self.failure = error
            for row in rows:
                row.future.set_exception(error)
            raise
        self.version = version
        for row in rows:
            if row.sampling.stop:
                row.done = Completion(finish_reason="")
            self._enter(row)

    def metrics(self) -> dict[str, float]:
        """Rows under way and the tokens they may still get; tokens drawn and rows cut by weights so far."""
        waiting = [row.limit - len(row.done.token_ids) for row in self._rows.values()]
        return {
            "service/rows": len(waiting),
            "service/outstanding_tokens": sum(waiting),
            "service/generated_tokens/sum": self.generated,
            "service/cut_rows/sum": self.cut,
        }

    def _enter(self, row: _Row) -> None:
        self._rows[self.rollout.add_request(row.request)] = row
        self._idle.clear()
        self._start()

    def _end(self, keys: list[str]) -> list[_Row]:
        """Take rows out of the engine, with the tokens that they have by now."""
        parts = self.rollout.abort(keys) if keys else {}
        rows = [self._rows.pop(key) for key in keys]
        for key, row in zip(keys, rows, strict=True):
            self._add(row, parts.get(key, Completion(finish_reason="abort")))
        if not self._rows:
            self._idle.set()
        return [row for row in rows if not row.future.done()]

    def _add(self, row: _Row, part: Completion) -> None:
        row.add(part, self.version)
        self.generated += len(part.token_ids)

    def _start(self) -> None:
        if not self._stopped and self._rows and (self._pump is None or self._pump.done()):
            self._pump = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)  # let every coroutine that can ask do so: one step serves all
            if self._stopped or not self._rows:
                return
            try:
                finished = self.rollout.step()
            except Exception as error:  # the engine's boundary: whoever waits must learn of it
                self.failure = error
                for row in self._end(list(self._rows)):
                    row.future.set_exception(error)
                return
            for key, part in finished.items():
                row = self._rows.pop(key)
                self._add(row, part)
                if not row.future.done():
                    row.future.set_result(row.done)
            if not self._rows:
                self._idle.set()
