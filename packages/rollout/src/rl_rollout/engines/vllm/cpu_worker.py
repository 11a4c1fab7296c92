"""vLLM's CPU worker with a shared-memory name of our choosing. Imported by vLLM, by name."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from rl_rollout.engines.vllm.private_api import name_shared_memory


class NamedMemoryCPUWorker(CPUWorker):
    """Takes the name of the tensor-parallel group's shared memory from `additional_config`.

    The CPU worker derives that name from its init method, which under the external launcher is the same for
    every job on the machine.
    """

    def init_device(self) -> None:
        """See the base class."""
        settings: Any = self.vllm_config.additional_config
        name_shared_memory(self, settings["rl_rollout_shm_name"])
        base: Any = super()
        base.init_device()
