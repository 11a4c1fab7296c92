"""A key that nobody reads is a bug."""

from __future__ import annotations

import re
from pathlib import Path

from rl_trainer.config.loading import config_keys

SOURCES = Path(__file__).parents[1] / "packages"


def test_every_key_is_read_outside_the_configuration_code() -> None:
    files = [
        path
        for path in SOURCES.glob("*/src/**/*.py")
        if path.stem not in ("config", "tree", "steps", "resolve", "checks")
    ]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    read = set(re.findall(r"\.(\w+)\b(?!\s*=[^=])", code))
    # Read by a property of their own class that others use (greedy, model_len, workers_per_node).
    through_the_class = {"do_sample", "max_model_len", "n_gpus_per_node"}
    unread = {path for path in config_keys() if path.rpartition(".")[2] not in read | through_the_class}
    assert unread == set()
