"""The terminal and the live page: what is being done, everything that was, and a time that is right."""

from __future__ import annotations

import io
import json
import logging
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from rich.console import Console

from rl_trainer.cli import main
from rl_trainer.errors import ConfigError
from rl_trainer.run.launch import summary
from rl_trainer.run.task_runner import logging_to
from rl_trainer.state.run_state import FitResult
from rl_trainer.view import display as display_module
from rl_trainer.view.display import Display
from rl_trainer.view.watch import served

METRICS = {"critic/score/mean": 0.5, "timing_s/step": 2.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The display's time, as a list of one number that a test sets."""
    now = [0.0]
    monkeypatch.setattr(display_module.time, "monotonic", lambda: now[0])
    return now


def a_display(terminal: bool = False) -> tuple[Display, io.StringIO]:
    stream = io.StringIO()
    return Display(Console(file=stream, force_terminal=terminal, width=100)), stream


def now(display: Display) -> str:
    """The last line, as text."""
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(display._now())
    return console.export_text()


def test_a_silent_phase_shows_what_is_done_and_for_how_long(clock: list[float]) -> None:
    display, stream = a_display()
    display.show({"kind": "stage", "text": "loading the actor model"})
    clock[0] = 65.0
    assert "loading the actor model 1:05" in now(display)
    assert "loading the actor model" in stream.getvalue()


def test_after_the_first_validation_the_first_of_all_steps_is_shown(clock: list[float]) -> None:
    display, _ = a_display()
    display.show({"kind": "begin", "step": 0, "total": 20})
    display.show({"kind": "stage", "text": "validating after step 0"})
    assert "validating after step 0" in now(display) and "0/20" in now(display)
    display.show({"kind": "validation", "step": 0, "metrics": {"val-core/a/reward/greedy": 0.1}})
    assert "training, step 1 of 20" in now(display)


def test_an_estimate_counts_validation_and_saving_but_not_the_first_validation(clock: list[float]) -> None:
    display, stream = a_display()
    display.show({"kind": "begin", "step": 0, "total": 10})
    clock[0] = 1000.0
    display.show({"kind": "validation", "step": 0, "metrics": {}})
    for step in (1, 2):
        clock[0] += 30.0  # of which a step takes two seconds
        display.show({"kind": "step", "step": step, "total": 10, "metrics": METRICS})
    assert stream.getvalue().splitlines()[-1].endswith("4:00")


@pytest.mark.parametrize("terminal", [False, True])
def test_no_row_vanishes(terminal: bool) -> None:
    display, stream = a_display(terminal)
    with display:
        for step in range(1, 41):
            display.show({"kind": "step", "step": step, "total": 40, "metrics": METRICS})
    rows = re.findall(r"(\d+) +0\.500", stream.getvalue())
    assert [int(row) for row in rows] == list(range(1, 41))


def test_a_run_without_validation_speaks_of_none() -> None:
    def told(before: float, after: float) -> str:
        return summary(FitResult(4, before, after, 60.0, "", {}))

    assert told(float("nan"), float("nan")) == "done: 4 steps in 1.0 minutes of training"
    assert told(float("nan"), 0.5).startswith("done: validation 0.500 after; 4 steps")
    assert told(0.25, 0.5).startswith("done: validation 0.250 before, 0.500 after; 4 steps")


def test_the_packages_notes_reach_the_log_and_other_libraries_chat_does_not(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "driver.log"
    with logging_to(path):
        logging.getLogger("rl_workers.fsdp").info("a note")
        logging.getLogger("rl_trainer.loop").debug("a detail")
        logging.getLogger("some_library").info("chat")
        logging.getLogger("some_library").warning("a warning")
    text = path.read_text()
    assert "a note" in text and "a warning" in text
    assert "a detail" not in text and "chat" not in text


def write_run(folder: Path) -> Path:
    lines = [{"step": step, **METRICS, "val-core/a/reward/greedy": 0.1 * step} for step in range(3)]
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_run_is_watched_on_a_local_page(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        assert address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(address)
        write_run(tmp_path)
        assert b"Plotly" in urllib.request.urlopen(address).read()
        shown = json.loads(urllib.request.urlopen(address + "content").read())
        assert [figure["title"] for figure in shown["figures"]][:2] == ["Validation", "Reward"]
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"--port {port}"), served(tmp_path, port):
            pass


def test_a_run_is_watched_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(write_run(tmp_path / "run")), "--once"]) == 0
    text = capsys.readouterr().out
    assert "validation after step 0" in text and "the run stands after step 2" in text
    assert main(["watch", str(tmp_path / "none"), "--once"]) == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "no-such-folder"], "is it the folder of a run"),
        (["eval", "."], "holds no config.yaml"),
        (["export", "."], "holds no config.yaml"),
        (["train", "no.yaml"], "no.yaml"),
    ],
)
def test_a_wrong_folder_is_one_sentence(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1


def test_a_page_that_cant_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    run = write_run(tmp_path / "run")
    assert main(["report", str(run), "--output", str(tmp_path / "file" / "report.html")]) == 2
    assert "a file stands where a folder is needed" in capsys.readouterr().err
