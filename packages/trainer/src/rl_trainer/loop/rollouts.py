"""Where batches come from: prompts go to the engines, sampled rows stay with the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_controller import WorkerGroup
from rl_protocol import DataProto, DataProtoFuture, Store
from rl_rollout import SamplingConfig

from ..config.tree import PPOConfig
from ..data.seeds import row_seeds
from ..state.run_state import RunState
from .in_flight import Generation, InFlight
from .metrics import Metrics, reduce_metrics
from .step_batch import StepBatch, tensors_of


class Rollouts:
    """Starts generations and reads them.

    The loop asks for `next`, or for `sample` where it needs rows at once, and calls `sync_weights` once the
    policy has changed; a checkpoint holds what `save` writes. Another producer of batches offers these.

    Args:
        config: the whole tree.
        state: counts the batches drawn and the policy's versions.
        engines: the group that generates.
        policy: the group that is trained; the same one where engines live in the trained processes.
        store: holds what the driver sends.
    """

    def __init__(
        self, config: PPOConfig, state: RunState, engines: WorkerGroup, policy: WorkerGroup, store: Store
    ) -> None:
        self.config, self.state, self.store = config, state, store
        self.engines, self.policy = engines, policy
        self.in_flight = InFlight(config.ahead, self.start)
        self.pushes: deque[Any] = deque()  # calls that put weights into engines, oldest first

    def next(self, prompts: Callable[[], DataProto | None]) -> tuple[StepBatch, Metrics]:
        """The oldest batch under way; starts what is missing of `trainer.staleness` batches first.

        Args:
            prompts: gives the prompts of another batch; None where the run needs no more.
        """
        generation = self.in_flight.next(prompts)
        batch, metrics = self.read(generation)
        return batch, metrics | {"training/staleness": float(self.state.version - generation.version)}

    def sample(
        self, prompts: DataProto, samplings: Sequence[SamplingConfig], step: int | str = ""
    ) -> tuple[StepBatch, Metrics]:
        """Generate now; see `start`."""
        return self.read(self.start(prompts, samplings, step))

    def start(
        self, prompts: DataProto, samplings: Sequence[SamplingConfig] = (), step: int | str = ""
    ) -> Generation:
        """Begin to generate responses; see `rows`."""
        rows = self.rows(prompts, samplings, step or self.state.drawn)
        return Generation(prompts, self.engines.submit("generate_sequences", rows), self.state.version)

    def rows(
        self, prompts: DataProto, samplings: Sequence[SamplingConfig], step: int | str
    ) -> DataProtoFuture:
        """What the engines are to complete: prompts repeated, each row with a seed of its own.

        Args:
            prompts: one row each.
            samplings: of each response of a prompt; empty: `rollout.n` as in training.
            step: what seeds derive from beside the row.
        """
        rollout = self.config.actor_rollout_ref.rollout
        n = len(samplings) or rollout.n
        # A prompt leaves the driver once; workers repeat it. Only agent loops read its object columns.
        sent = prompts.select(None, None if rollout.agent_loop else [], [])
        repeated = DataProtoFuture.from_data(sent, self.store).repeat(n)
        uids = np.repeat(prompts.non_tensor_batch["uid"], n)
        own = DataProto.from_dict(
            {"seeds": row_seeds(self.config.trainer.seed, step, list(uids))},
            {"sampling": [*samplings] * len(prompts)} if samplings else {},
        )
        return repeated.union(own)

    def read(self, generation: Generation) -> tuple[StepBatch, Metrics]:
        """Wait for a batch, whose rows stay where they are; with what the engines measured."""
        remote, prompts = generation.remote, generation.prompts
        n = len(remote) // len(prompts)
        objects = prompts.select([], None, [])
        with_objects = remote.union(DataProtoFuture.from_data(objects, self.store).repeat(n))
        lengths = tensors_of(prompts)["attention_mask"].sum(1).repeat_interleave(n)
        batch = StepBatch(with_objects, objects.repeat(n), prompts, {"prompt_lengths": lengths})
        batch.fetch("response_lengths", "num_actions")
        return batch, reduce_metrics(remote.meta_info.get("metrics", {}))

    @property
    def has_own_processes(self) -> bool:
        """Whether engines live apart from the policy; otherwise they take its weights when they generate."""
        return self.engines is not self.policy

    def sync_weights(self) -> None:
        """Give engines in processes of their own the policy's weights, behind the batches under way.

        An engine works in the order of the calls, so a batch started after this one is sampled from these
        weights. Only a push that every batch under way was started after is waited for: it is done.
        """
        self.pushes.append(self.engines.submit("load_weights", self.policy.submit("collect_weights")))
        while len(self.pushes) > self.in_flight.ahead:
            self.pushes.popleft().get()

    @property
    def versions_in_flight(self) -> list[int]:
        """The policy's version that samples each batch under way, oldest first."""
        return [generation.version for generation in self.in_flight.queue]

    def save(self, folder: Path) -> None:
        """Keep the batches under way: their policy is gone when the run resumes."""
        self.in_flight.save(folder)

    def load(self, folder: Path, versions: Sequence[int]) -> None:
        """Take up what `save` kept, given the `versions_in_flight` of then."""
        self.in_flight.load(folder, versions, self.store)
