"""The worker that only generates, and answers many calls at once."""

from __future__ import annotations

import asyncio

from rl_controller import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from rl_protocol import DataProto
from rl_rollout import RolloutService, run_agent_rows
from rl_workers.config import ActorRolloutRefConfig
from rl_workers.roles.actor import ActorRolloutRefWorker
from rl_workers.roles.weight_exchange import unpack_weights

_rollout = make_nd_compute_dataproto_dispatch_fn(mesh_name="rollout")


class RolloutServiceWorker(ActorRolloutRefWorker):
    """An engine behind a `RolloutService`: calls share its steps, and weights may come in between.

    The methods are those of an ``ActorRolloutRefWorker`` in the role ``rollout``, as coroutines.
    """

    def __init__(self, config: ActorRolloutRefConfig, role: str = "rollout") -> None:
        super().__init__(config, role)
        self._service: RolloutService | None = None
        self._loading = asyncio.Lock()

    @property
    def service(self) -> RolloutService:
        """The service; made when it is first used, since it is of one event loop."""
        if self._service is None:
            self._service = RolloutService(self.need(self.rollout, "rollout engine"))
        return self._service

    @register(dispatch_mode=_rollout, read_only=True)
    async def generate_sequences(self, prompts: DataProto) -> DataProto:  # type: ignore[override]
        """One response per row; see ``RolloutService.generate_sequences``."""
        if self._loop is None:
            return await self.service.generate_sequences(prompts)
        return await run_agent_rows(self.service, self._loop, prompts)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    async def load_weights(  # type: ignore[override]
        self, weights: DataProto, version: int = 0, partial: bool = True
    ) -> None:
        """Give the engine what ``collect_weights`` packed, unless newer weights are there already.

        Args:
            version: of the weights.
            partial: whether rows under way are cut and go on with them; otherwise they are waited for.
        """
        service = self.service
        async with self._loading:
            if version < service.version:
                return
            service.rollout.wake()
            if not partial:
                await service.pause("wait")
            try:
                service.update_weights(version, unpack_weights(weights))
            finally:
                service.resume()
