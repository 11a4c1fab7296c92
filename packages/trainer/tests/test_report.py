"""The page about a run: it holds what the run wrote, whatever text is in it, and asks for nothing else."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rl_trainer.errors import DataError
from rl_trainer.view.charts import figures, step_parts
from rl_trainer.view.report import content, write_report
from rl_trainer.view.run_files import open_run

LINE = {
    "critic/score/mean": 0.5,
    "critic/score/min": 0.0,
    "critic/score/max": 1.0,
    "timing_s/gen": 3.0,
    "timing_s/push_weights/max": 1.0,
    "timing_s/update_actor": 4.0,
    "timing_s/step": 8.0,
    "timing_s/testing": 5.0,
    "timing_s/save_checkpoint": 2.0,
}
ODD = "a\u2028b\u0085c</script><b>&"


def a_run(folder: Path, lr: float = 1e-5, steps: int = 3) -> Path:
    (folder / "generations").mkdir(parents=True)
    lines = [{"step": step, **LINE, "val-core/sums/reward/greedy": step / 10} for step in range(steps)]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 99, "tor'
    (folder / "metrics.jsonl").write_text(text)
    (folder / "config.yaml").write_text(f"actor_rollout_ref:\n  actor:\n    optim:\n      lr: {lr}\n")
    for step in (0, 2, 10):
        row = {"prompt": ODD, "response": f"{ODD} {step}", "score": 0.25, "greedy": True, "cut_off": True}
        row["tokens"] = [["one", -0.5, True], ["tool", -2.0, False]]
        path = folder / "generations" / f"step_{step}.jsonl"
        path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder


class Page(HTMLParser):
    """What a page would load, and the data in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.data, self.inside = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [str(found[name]) for name in ("src", "href") if name in found]
        self.inside = found.get("id") == "data"

    def handle_data(self, data: str) -> None:
        self.data += data if self.inside else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def test_a_page_is_whole_in_itself_whatever_stands_in_the_samples(tmp_path: Path) -> None:
    page = Page(write_report([a_run(tmp_path / "run")]).read_text(encoding="utf-8"))
    assert page.loads == ["data:,"]
    shown = json.loads(page.data)
    assert "a\u2028b\u0085c&lt;/script&gt;&lt;b&gt;&amp; 10" in shown["bottom"]
    assert "after step 0" in shown["bottom"] and "after step 10" in shown["bottom"]
    assert "cut off" in shown["bottom"] and 'class="masked" title="-2.000"' in shown["bottom"]
    assert "0.000 → 0.200" in shown["top"]
    settings = shown["bottom"][shown["bottom"].index("Settings") :]
    assert "<td>actor_rollout_ref.actor.optim.lr</td><td>1e-05</td><td>1e-06</td>" in settings


def test_the_parts_of_a_steps_time_add_up_to_it() -> None:
    parts = step_parts(LINE)
    assert parts == {"gen": 2.0, "update_actor": 4.0, "push_weights": 1.0, "other": 1.0}
    assert sum(parts.values()) == LINE["timing_s/step"]


@pytest.mark.parametrize(("steps", "between"), [(3, 1), (30, 5), (1000, 200)])
def test_ticks_are_whole_steps(tmp_path: Path, steps: int, between: int) -> None:
    drawn = figures([open_run(a_run(tmp_path / "run", steps=steps))])
    assert {figure["dtick"] for figure in drawn} == {between}


def test_runs_are_laid_over_each_other_with_what_differs(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / "a"), a_run(tmp_path / "b", lr=1e-4), a_run(tmp_path / "c")]
    shown = content([open_run(folder) for folder in folders])
    reward = next(figure for figure in shown["figures"] if figure["title"] == "Reward")
    assert [trace["name"] for trace in reward["traces"]] == ["a", "b", "c"] and reward["many"]
    assert "<td>1e-05</td><td>0.0001</td><td>1e-05</td>" in shown["bottom"]
    assert write_report(folders, tmp_path / "all.html").is_file()


@pytest.mark.parametrize("text", ["", '{"step": 1', "[1]\nnull\n"])
def test_a_folder_without_a_finished_step_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(DataError, match="is it the folder of a run"):
        write_report([tmp_path])
