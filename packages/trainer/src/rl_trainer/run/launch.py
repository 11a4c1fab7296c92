"""Check a configuration, get a cluster, run the driver program on it, and show what it reports."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ray

from rl_rollout import engine_env
from rl_rollout.precision import AUTO, compute_keys, fill_auto

from ..cluster.connection import connected
from ..cluster.precision import nodes_dtype
from ..config.tree import PPOConfig
from ..errors import RLTrainerError, TrainingError, disk_problem
from ..plan.inert import inert_keys
from ..plan.precision import computes_in, emulated
from ..plan.resolve import resolve
from ..state.run_folder import owned
from ..state.run_state import FitResult
from ..view.display import Display
from .driver import EVALUATION, EXPORT, TRAINING, Driver, find_runner

if TYPE_CHECKING:
    from .task_runner import TaskRunner

ANSWER_TIMEOUT_S = 300.0


def run_ppo(
    config: PPOConfig, runner_class: type[TaskRunner] | str = TRAINING, display: Display | None = None
) -> FitResult:
    """Check the configuration, get a cluster, train, and leave no process behind.

    Args:
        config: not yet resolved; it is checked before Ray starts.
        runner_class: the driver program; given as `package.module:name`, it is imported only where it runs.
        display: where events are shown; None: the terminal.

    Raises:
        ConfigError: the configuration does not fit together.
        TrainingError: the run failed; the message holds the cause.
    """
    resolve(config)
    trains = runner_class not in (EVALUATION, EXPORT) and getattr(runner_class, "trains", True)
    lock = owned(Path(config.trainer.default_local_dir)) if trains else nullcontext()
    with lock, display or Display() as screen:
        for line in inert_keys(config):
            screen.show({"kind": "stage", "text": line})
        if config.trainer.backend == "local":
            _tell_precision(config, screen)
            return _run_here(config, runner_class, screen)
        if not ray.is_initialized():
            address = config.trainer.ray_address
            text = f"joining the cluster {address}" if address else "starting Ray"
            screen.show({"kind": "stage", "text": text})
        with connected(config.trainer):
            if any(getattr(owner, name) == AUTO for owner, name, _ in compute_keys(config)):
                fill_auto(config, nodes_dtype(config.trainer))
            _tell_precision(config, screen)
            return _run_remote(config, runner_class, screen)


def _tell_precision(config: PPOConfig, screen: Display) -> None:
    for text in (f"computing in {computes_in(config)}", *emulated(config)):
        screen.show({"kind": "stage", "text": text})


def _run_here(config: PPOConfig, runner_class: type[TaskRunner] | str, screen: Display) -> FitResult:
    """The whole program in this process, with one worker: a breakpoint stops anywhere."""
    os.environ.update(engine_env(config.trainer.device))
    return find_runner(runner_class)(screen.show).run(config)


def _run_remote(config: PPOConfig, runner_class: type[TaskRunner] | str, screen: Display) -> FitResult:
    """The driver program as an actor of the cluster."""
    screen.show({"kind": "stage", "text": "starting the driver program"})
    remote: Any = ray.remote(Driver)
    runner = remote.options(num_cpus=0, max_concurrency=2).remote(runner_class)
    logs = f"{config.trainer.default_local_dir}/logs"
    try:
        return _follow(runner, config, screen)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RLTrainerError):
            raise error.cause from error
        if problem := disk_problem(error.cause):
            raise TrainingError(problem) from error
        raise TrainingError(f"the run failed; logs: {logs}\n{error}") from error
    except ray.exceptions.GetTimeoutError as error:
        raise TrainingError(
            f"the driver program did not answer within {ANSWER_TIMEOUT_S:.0f} s; logs: {logs}"
        ) from error
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        raise TrainingError(f"the driver program died (out of memory?); logs: {logs}\n{error}") from error
    finally:
        ray.kill(runner)


def _follow(runner: Any, config: PPOConfig, screen: Display) -> FitResult:
    """Run the driver program and show its events until it ends."""
    result = runner.run.remote(config)
    ended = False
    while not ended:
        # Asked before the events are read, so that the last ones are read too.
        ended = bool(ray.wait([result], timeout=0)[0])
        for event in ray.get(runner.next_events.remote(0.0 if ended else 0.5), timeout=ANSWER_TIMEOUT_S):
            screen.show(event)
    return cast(FitResult, ray.get(result))


def summary(result: FitResult) -> str:
    """The run's last line."""
    minutes = result.training_seconds / 60
    known = {"before": result.val_before, "after": result.val_after}
    told = [f"{value:.3f} {when}" for when, value in known.items() if not math.isnan(value)]
    scores = f"validation {', '.join(told)}; " if told else ""
    return f"done: {scores}{result.steps} steps in {minutes:.1f} minutes of training"
