"""Generation beside training: prompts are sampled one by one and taken as they are ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl_controller import RayWorkerGroup, WorkerGroup
from rl_protocol import DataProto, DataProtoFuture, LocalStore, RayStore, Store

from ..config.tree import PPOConfig
from ..state.files import write_json
from ..state.run_state import RunState
from .in_flight import Generation
from .metrics import Metrics
from .rollouts import Rollouts
from .step_batch import StepBatch, tensors_of

GROUPS = "groups.json"


@dataclass(frozen=True)
class Group:
    """One prompt and its rows.

    Attributes:
        prompt: one row.
        drawn: number of the batch in which the prompt was drawn; seeds derive from it.
        remote: the rows, where they are made; None before they are begun.
        rank: the engine that makes them.
    """

    prompt: DataProto
    drawn: int
    remote: DataProtoFuture | None = None
    rank: int = 0

    @property
    def version(self) -> int:
        """The weights' that drew its oldest token; waits for the rows, and raises what they raised."""
        if self.remote is None:
            raise ValueError("the group was not begun")
        rows: DataProto = self.remote.select(["oldest_version"], [], []).get()
        return int(tensors_of(rows)["oldest_version"].min())


class AsyncRollouts(Rollouts):
    """Keeps prompts in flight and gives batches of those that are ready, the oldest first.

    At most `async_training.staleness` batches of prompts are drawn ahead of the one that is wanted. Weights
    go to the engines while rows are under way. Rows with a token older than the bound are dropped and their
    prompt is sampled anew: each prompt drawn is trained on once.
    """

    def __init__(
        self, config: PPOConfig, state: RunState, engines: WorkerGroup, policy: WorkerGroup, store: Store
    ) -> None:
        super().__init__(config, state, engines, policy, store)
        self.limits = config.async_training
        self.groups: list[Group] = []
        self.started_rows = self.trained_rows = self.dropped_rows = 0

    def next(self, prompts: Callable[[], DataProto | None]) -> tuple[StepBatch, Metrics]:
        """A batch of groups that are ready; see `Rollouts.next`."""
        size = self.config.data.train_batch_size
        while len(self.groups) <= self.limits.staleness * size:
            more = prompts()
            if more is None:
                break
            self.groups += [Group(more[i : i + 1], self.state.drawn) for i in range(len(more))]
        taken = self._take(min(size, len(self.groups)))
        oldest = min(group.version for group in taken)
        prompts_taken = DataProto.concat([group.prompt for group in taken])
        remote = DataProtoFuture.concat([group.remote for group in taken if group.remote is not None])
        batch, metrics = self.read(Generation(prompts_taken, remote, oldest))
        self.trained_rows += len(batch)
        return batch, metrics | self._account() | {"training/staleness": float(self.state.version - oldest)}

    def _take(self, count: int) -> list[Group]:
        """The first `count` groups that are ready and recent enough, in the order of their prompts."""
        while True:
            self._begin()
            ready = self._ready(count)
            stale = [index for index in ready if self._is_stale(self.groups[index])]
            for index in stale:
                self.dropped_rows += self.config.actor_rollout_ref.rollout.n
                self.groups[index] = replace(self.groups[index], remote=None)
            if not stale:
                break
        chosen = set(ready[:count])
        taken = [self.groups[index] for index in sorted(chosen)]
        self.groups = [group for index, group in enumerate(self.groups) if index not in chosen]
        return taken

    def _ready(self, count: int = 0) -> list[int]:
        """The groups whose rows are there; waits for `count`."""
        begun = {index: group.remote for index, group in enumerate(self.groups) if group.remote is not None}
        found = DataProtoFuture.wait_for(list(begun.values()), count, self.config.trainer.timeout_s)
        places = list(begun)
        return [places[place] for place in found]

    def _is_stale(self, group: Group) -> bool:
        too_old = self.state.version - self.limits.staleness - 1
        return self.limits.drop_stale and group.version <= too_old

    def _begin(self) -> None:
        """Send each prompt that waits to the engine with least to do: all its rows share one cache there."""
        ready, load = set(self._ready()), [0] * self.engines.world_size
        for index, group in enumerate(self.groups):
            load[group.rank] += group.remote is not None and index not in ready
        for index, group in enumerate(self.groups):
            if group.remote is None:
                rank = load.index(min(load))
                load[rank] += 1
                rows = self.rows(group.prompt, (), group.drawn)
                remote = self.engines.submit_to(rank, "generate_sequences", rows)
                self.groups[index] = replace(group, remote=remote, rank=rank)
                self.started_rows += self.config.actor_rollout_ref.rollout.n

    def sync_weights(self) -> None:
        """Give the engines the policy's weights while rows are under way, or once these are done."""
        weights, partial = self.policy.submit("collect_weights"), self.limits.partial_rollout
        self.pushes.append(self.engines.submit("load_weights", weights, self.state.version, partial))
        while len(self.pushes) > (0 if partial else self.limits.staleness):
            self.pushes.popleft().get()

    def _account(self) -> Metrics:
        """Every row that was begun, and what became of it."""
        flight = sum(group.remote is not None for group in self.groups)
        rows = flight * self.config.actor_rollout_ref.rollout.n
        assert self.started_rows == self.trained_rows + self.dropped_rows + rows, "a row was lost or repeated"
        return {
            "async/rows_started": float(self.started_rows),
            "async/rows_trained": float(self.trained_rows),
            "async/rows_dropped": float(self.dropped_rows),
            "async/rows_in_flight": float(rows),
        }

    # ---- checkpoints ---------------------------------------------------------------------------------

    @property
    def versions_in_flight(self) -> list[int]:
        """The version of the oldest token of each group that is ready; -1 for those that are not."""
        ready = set(self._ready())
        return [group.version if index in ready else -1 for index, group in enumerate(self.groups)]

    def save(self, folder: Path) -> None:
        """Keep the rows that are ready, and of those under way the prompts: they are begun again."""
        folder.mkdir(parents=True, exist_ok=True)
        ready = self._ready()
        remotes = [self.groups[index].remote for index in ready]
        counts = {"trained_rows": self.trained_rows, "dropped_rows": self.dropped_rows}
        drawn = [group.drawn for group in self.groups]
        write_json(folder / GROUPS, {"drawn": drawn, "ready": ready, **counts})
        if self.groups:
            DataProto.concat([group.prompt for group in self.groups]).save(folder / "prompts")
        if ready:
            DataProtoFuture.concat([remote for remote in remotes if remote]).get().save(folder / "rows")

    def load(self, folder: Path, versions: Sequence[int]) -> None:
        """Take up what `save` kept."""
        kept, n = json.loads((folder / GROUPS).read_text()), self.config.actor_rollout_ref.rollout.n
        self.trained_rows, self.dropped_rows = kept["trained_rows"], kept["dropped_rows"]
        self.started_rows = self.trained_rows + self.dropped_rows + n * len(kept["ready"])
        self.groups = []
        if kept["drawn"]:
            prompts = DataProto.load(folder / "prompts")
            self.groups = [Group(prompts[i : i + 1], drawn) for i, drawn in enumerate(kept["drawn"])]
        if kept["ready"]:
            rows = DataProto.load(folder / "rows")
            for place, index in enumerate(kept["ready"]):
                remote = DataProtoFuture.from_data(rows[place * n : (place + 1) * n], self.store)
                self.groups[index] = replace(self.groups[index], remote=remote)


def build_rollouts(config: PPOConfig, state: RunState, engines: WorkerGroup, policy: WorkerGroup) -> Rollouts:
    """The source of batches that `trainer.mode` names."""
    store: Store = RayStore() if isinstance(policy, RayWorkerGroup) else LocalStore()
    kind = AsyncRollouts if config.trainer.mode == "async" else Rollouts
    return kind(config, state, engines, policy, store)
