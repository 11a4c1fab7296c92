"""Traces of chosen steps and ranks: spans by name, memory as a counter; no cost where nothing is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from workers_models import make_batch
from workers_programs import actor_config, profiled_steps
from workers_ranks import run_ranks

from rl_workers import DistProfiler, ProfilerConfig


def test_chosen_step_on_chosen_rank(tiny_model: str, tmp_path: Path) -> None:
    profiler = ProfilerConfig(steps=[1], ranks=[1], save_path=str(tmp_path / "traces"))
    batch = make_batch(2, 2, 9, 7)
    written = run_ranks(tmp_path, 2, profiled_steps, actor_config(tiny_model), batch, profiler, 3)
    assert written == [["", "", ""], ["", str(tmp_path / "traces" / "step1-rank1.json"), ""]]
    events = json.loads(Path(written[1][1]).read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"ActorRolloutRefWorker.update_actor", "forward", "backward", "optimizer"} <= names
    counters = [event for event in events if event.get("ph") == "C" and event["name"] == "memory"]
    assert len(counters) >= 8 and all(event["args"]["resident_mb"] > 50 for event in counters)
    assert not any(str(name).startswith("memory_mark") for name in names)
    stamps = [event["ts"] for event in counters]
    assert stamps == sorted(stamps)


def test_errors_pass_and_names_stay() -> None:
    @DistProfiler.annotate("boom")
    def fail(value: int) -> Any:
        """Fails."""
        raise ValueError(value)

    assert fail.__name__ == "fail" and fail.__doc__ == "Fails."
    with pytest.raises(ValueError, match="3"):
        fail(3)
    assert DistProfiler.stop() == ""
