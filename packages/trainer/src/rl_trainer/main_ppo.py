"""`python -m rl_trainer.main_ppo [config.yaml] key=value ...`: the same as `rl-trainer train`."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
