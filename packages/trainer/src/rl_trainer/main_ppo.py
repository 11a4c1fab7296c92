"""`python -m rl_trainer.main_ppo [config.yaml] key=value ...`: start or join a cluster and train."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import ray

from rl_rollout import engine_env

from .config import PPOConfig
from .display import Display
from .errors import RLTrainerError, TrainingError
from .plan import resolve
from .task_runner import TaskRunner
from .training_run import FitResult

ANSWER_TIMEOUT_S = 300.0


def run_ppo(
    config: PPOConfig, runner_class: type[TaskRunner] = TaskRunner, display: Display | None = None
) -> FitResult:
    """Check the configuration, get a cluster, train, and leave no process behind.

    Args:
        config: not yet resolved; it is checked before Ray starts.
        runner_class: the driver program.
        display: where events are shown; None: the terminal.

    Raises:
        ConfigError: the configuration does not fit together.
        TrainingError: the run failed; the message holds the cause.
    """
    resolve(config)
    if config.trainer.backend == "local":
        with display or Display() as screen:
            return run_here(config, runner_class, screen)
    with display or Display() as screen, cluster(config, screen):
        screen.show({"kind": "stage", "text": "starting the driver program"})
        remote: Any = ray.remote(runner_class)
        runner = remote.options(num_cpus=0, max_concurrency=2).remote()
        try:
            return follow(runner, config, screen)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RLTrainerError):
                raise error.cause from error
            raise TrainingError(f"the run failed; logs: {logs_of(config)}\n{error}") from error
        except ray.exceptions.GetTimeoutError as error:
            raise TrainingError(
                f"the driver program did not answer within {ANSWER_TIMEOUT_S:.0f} s; logs: {logs_of(config)}"
            ) from error
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            raise TrainingError(
                f"the driver program died (out of memory?); logs: {logs_of(config)}\n{error}"
            ) from error
        finally:
            ray.kill(runner)


def follow(runner: Any, config: PPOConfig, screen: Display) -> FitResult:
    """Run the driver program and show its events until it ends."""
    result = runner.run.remote(config)
    ended = False
    while not ended:
        # Asked before the events are read, so that the last ones are read too.
        ended = bool(ray.wait([result], timeout=0)[0])
        for event in ray.get(runner.next_events.remote(0.0 if ended else 0.5), timeout=ANSWER_TIMEOUT_S):
            screen.show(event)
    return cast(FitResult, ray.get(result))


def logs_of(config: PPOConfig) -> str:
    """Where a run's processes write."""
    return f"{config.trainer.default_local_dir}/logs"


def run_here(config: PPOConfig, runner_class: type[TaskRunner], screen: Display) -> FitResult:
    """The whole program in this process, with one worker: a breakpoint stops anywhere."""
    os.environ.update(engine_env(config.trainer.device))
    return runner_class(screen.show).run(config)


@contextmanager
def cluster(config: PPOConfig, screen: Display) -> Iterator[None]:
    """A Ray cluster for the time of a run: the one that is named, else one of our own on this machine."""
    if ray.is_initialized():
        yield
        return
    address = config.trainer.ray_address
    screen.show({"kind": "stage", "text": f"joining the cluster {address}" if address else "starting Ray"})
    options: dict[str, Any] = {"address": address} if address else _own_cluster(config)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at {address!r} (trainer.ray_address or RAY_ADDRESS)" if address else "on this machine"
        raise TrainingError(f"no Ray cluster {where}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _own_cluster(config: PPOConfig) -> dict[str, Any]:
    trainer = config.trainer
    workers = (trainer.n_workers_per_node + trainer.n_rollout_workers_per_node) * trainer.nnodes
    return {
        "address": "local",
        "num_cpus": max(workers, os.cpu_count() or 1),
        "include_dashboard": False,
        "object_store_memory": 1 << 30,
    }


def summary(result: FitResult) -> str:
    """The run's last line."""
    minutes = result.training_seconds / 60
    scores = f"validation {result.val_before:.3f} before, {result.val_after:.3f} after"
    return f"done: {scores}; {result.steps} steps in {minutes:.1f} minutes of training"


if __name__ == "__main__":
    from .cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
