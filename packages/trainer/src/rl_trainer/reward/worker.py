"""Rule rewards beside the rows: each worker process scores the responses that it holds."""

from __future__ import annotations

from collections.abc import Callable

from rl_controller import Dispatch, Worker, make_nd_compute_dataproto_dispatch_fn, register
from rl_protocol import DataProto

from .returned import Returned, as_result

RewardFn = Callable[[DataProto], Returned]


class RewardWorker(Worker):
    """Calls the run's reward functions; what comes back is small, so that no response goes to the driver.

    Args:
        reward_fn: scores generated rows (`responses response_mask` `[b, R]`, `response_lengths` `[b]`, and
            the dataset's columns), and returns what `as_result` reads. With attributes `start` and `close`,
            they are called around the run.
        val_reward_fn: the same for validation.
    """

    def __init__(self, reward_fn: RewardFn, val_reward_fn: RewardFn) -> None:
        super().__init__()
        self.reward_fn, self.val_reward_fn = reward_fn, val_reward_fn

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Take part in the run with this rank's rows; start what the functions need."""
        self._register_dispatch_collect_info("rule_reward", self.rank, True)
        self._each("start")

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="rule_reward"), read_only=True)
    def compute_rule_reward(self, data: DataProto) -> DataProto:
        """A `RewardResult` as a batch; with `meta_info["validation"]` by the validation's function."""
        score = self.val_reward_fn if data.meta_info["validation"] else self.reward_fn
        return as_result(score(data), data).to_batch()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        """End what the functions started."""
        self._each("close")

    def _each(self, hook: str) -> None:
        for function in {id(f): f for f in (self.reward_fn, self.val_reward_fn)}.values():
            getattr(function, hook, lambda: None)()
