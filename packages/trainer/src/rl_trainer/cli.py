"""The console script `rl-trainer`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .config_loading import config_keys, load_config
from .errors import RLTrainerError
from .main_ppo import main as train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except RLTrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rl-trainer", description="Train language models by reinforcement.")
    commands = parser.add_subparsers(required=True, metavar="command")
    words = {"nargs": "*", "metavar": "config.yaml | key=value"}
    command = commands.add_parser("train", help="train: an optional configuration file, then overrides")
    command.add_argument("words", **words)
    command.set_defaults(command=lambda options: train(options.words))
    command = commands.add_parser("config", help="print the resolved configuration")
    command.add_argument("words", **words)
    command.set_defaults(command=_print_config)
    command = commands.add_parser("keys", help="list configuration keys with type, default and meaning")
    command.add_argument("prefix", nargs="?", default="", help="only keys that start so")
    command.set_defaults(command=_print_keys)
    return parser


def _print_config(options: argparse.Namespace) -> int:
    from .config_loading import to_yaml

    words = list(options.words)
    source = words.pop(0) if words and "=" not in words[0] else None
    sys.stdout.write(to_yaml(load_config(source, words)))
    return 0


def _print_keys(options: argparse.Namespace) -> int:
    for key in config_keys().values():
        if key.path.startswith(options.prefix):
            sys.stdout.write(f"{key.path}: {key.type} = {key.default!r}\n    {key.doc}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
