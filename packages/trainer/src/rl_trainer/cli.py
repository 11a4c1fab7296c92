"""The console script `rl-trainer`.

Every command imports what it needs when it is called: help and errors of the configuration come without the
seconds that torch and Ray take.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ConfigError, RLTrainerError, disk_problem
from .run.driver import EVALUATION, EXPORT, TRAINING

if TYPE_CHECKING:
    from .config.tree import PPOConfig
    from .state.run_state import FitResult

WORDS = "config.yaml | key=value"
RUN_WORDS = "run's folder | config.yaml | key=value"
Command = Callable[[argparse.Namespace], str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parse(arguments)
    try:
        sys.stdout.write(options.command(options) + "\n")
    except RLTrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except OSError as error:
        problem = disk_problem(error)
        if problem is None:
            raise
        sys.stderr.write(f"error: {problem}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the last checkpoint is kept, the same command goes on from there\n")
        return 130
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options of a command; its words may stand on both sides of a flag, unlike in plain argparse."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if not hasattr(options, "words") or any(word.startswith("-") for word in rest):
        return parser.parse_args(arguments)
    options.words += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-trainer", description="Train language models by reinforcement.")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(
        name: str, command: Command, text: str, metavar: str = "", example: str = ""
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name, help=text, description=text, epilog=f"example: rl-trainer {name} {example}".rstrip()
        )
        if metavar:
            sub.add_argument("words", nargs="*", metavar=metavar)
            sub.add_argument("--plain", action="store_true", help="lines alone, also on a terminal")
            sub.add_argument("--quiet", action="store_true", help="show the result and errors alone")
        sub.set_defaults(command=command)
        return sub

    trains = add(
        "train",
        _train,
        "train: an optional configuration file, then overrides",
        WORDS,
        "my.yaml trainer.seed=1",
    )
    trains.add_argument("--dry-run", action="store_true", help="print configuration and plan, then stop")
    add(
        "eval",
        _evaluate,
        "score a run's newest checkpoint, or a model, on data.val_files",
        RUN_WORDS,
        "runs/mine",
    )
    add("export", _export, "write a run's newest checkpoint as a Hugging Face model", RUN_WORDS, "runs/mine")
    report = add(
        "report",
        _report,
        "write report.html of a run, or lay several over each other",
        example="runs/a runs/b",
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="run", help="folder of a run")
    report.add_argument(
        "--output", type=Path, help="the page; else <run>/report.html, of several comparison.html"
    )
    watch = add(
        "watch",
        _watch,
        "follow a run from its folder: a page on this machine, and lines here",
        example="runs/mine",
    )
    watch.add_argument("run", type=Path, help="folder of a run")
    watch.add_argument("--port", type=int, default=0, help="port of the page; else any free one")
    watch.add_argument("--once", action="store_true", help="show what there is, then stop; no page")
    keys = add(
        "keys", _keys, "list configuration keys with type, default and meaning", example="trainer.save"
    )
    keys.add_argument("prefix", nargs="?", default="", help="only keys that start so")
    add("doctor", _doctor, "versions, devices and what is missing")
    return parser


def _config(options: argparse.Namespace) -> PPOConfig:
    from .config.loading import load_config

    words = list(options.words)
    source = words.pop(0) if words and "=" not in words[0] else None
    if source is not None and Path(source).is_dir():
        run, source = Path(source), str(Path(source) / "config.yaml")
        if not Path(source).is_file():
            raise ConfigError(f"{run} holds no config.yaml: it is not the folder of a run")
        words.insert(0, f"trainer.default_local_dir={run}")  # it may have been moved since
    return load_config(source, words)


def _train(options: argparse.Namespace) -> str:
    config = _config(options)
    if options.dry_run:
        return _dry_run(config)
    result = _run(options, config, TRAINING)

    from .run.launch import summary

    return summary(result)


def _dry_run(config: PPOConfig) -> str:
    from .config.loading import to_yaml
    from .plan.dry_run import describe_plan
    from .plan.resolve import resolve

    return f"{to_yaml(resolve(config))}\n{describe_plan(config)}"


def _evaluate(options: argparse.Namespace) -> str:
    config = _config(options)
    config.data.train_files = config.data.train_files or config.data.val_files
    metrics = _run(options, config, EVALUATION).metrics
    return "\n".join(f"{key} {value:.4f}" for key, value in metrics.items() if key.startswith("val-core/"))


def _export(options: argparse.Namespace) -> str:
    return f"done: {_run(options, _config(options), EXPORT).export}"


def _run(options: argparse.Namespace, config: PPOConfig, program: str) -> FitResult:
    """Say that something happens before importing what takes seconds, then run a driver program."""
    from .view.display import Display

    display = Display(plain=options.plain, quiet=options.quiet)
    display.show({"kind": "stage", "text": "loading torch and Ray, checking the configuration"})

    from .run.launch import run_ppo

    return run_ppo(config, program, display)


def _report(options: argparse.Namespace) -> str:
    from .view.report import write_report

    return f"done: {write_report(options.runs, options.output)}"


def _watch(options: argparse.Namespace) -> str:
    from .view.display import Display
    from .view.watch import follow, served

    if options.once:
        return f"the run stands after step {follow(options.run, Display(plain=True), once=True)}"
    with served(options.run, options.port) as address, Display(plain=True) as display:
        display.show(
            {"kind": "stage", "text": f"the live report is at {address}; Ctrl-C ends watching, not the run"}
        )
        try:
            return f"the run ended after step {follow(options.run, display)}"
        except KeyboardInterrupt:
            return "no longer watching"


def _keys(options: argparse.Namespace) -> str:
    from .config.loading import config_keys

    chosen = [key for key in config_keys().values() if key.path.startswith(options.prefix)]
    return "\n".join(f"{key.path}: {key.type} = {key.default!r}\n    {key.doc}" for key in chosen)


def _doctor(options: argparse.Namespace) -> str:
    from .view.doctor import report

    return report()


if __name__ == "__main__":
    sys.exit(main())
