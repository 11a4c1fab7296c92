"""`report.html`: one self-contained page about a run, or about several laid over each other."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.loading import config_keys
from ..errors import DataError
from ..state.files import replace_text
from .charts import figures
from .run_files import RunFiles, open_run

SAMPLES = 12
PAGE = Path(__file__).parent / "page"
NOT_A_SETTING = ("trainer.default_local_dir", "trainer.experiment_name", "trainer.project_name")


def write_report(folders: Sequence[Path], target: Path | None = None) -> Path:
    """Write one page about the runs in `folders`, from what they wrote.

    Args:
        folders: of one run, or of several that are compared.
        target: the page; None: `report.html` in the only run's folder, or `comparison.html` here.

    Raises:
        DataError: a folder holds no metrics, or the page can't be drawn.
    """
    runs = [open_run(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        runs = [RunFiles(run.folder, f"{run.folder.resolve().parent.name}/{run.name}") for run in runs]
    page = shell(content(runs), ", ".join(run.name for run in runs))
    target = target or (runs[0].folder / "report.html" if len(runs) == 1 else Path("comparison.html"))
    replace_text(target, page)
    return target


def content(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """What the page shows: `html` before and after the charts, and the `figures`."""
    if len(runs) == 1:
        top = f"<h1>{_text(runs[0].name)}</h1>{_headline(runs[0])}"
    else:
        top = "<h1>Runs compared</h1>" + "".join(
            f"<h2>{_text(run.name)}</h2>{_headline(run)}" for run in runs
        )
    return {"top": top, "figures": figures(runs), "bottom": _samples(runs) + _settings(runs) + _about(runs)}


def shell(shown: Mapping[str, Any], title: str, live: bool = False) -> str:
    """A whole page that needs nothing else; `live` asks its server for news.

    Raises:
        DataError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise DataError("a report needs a package: pip install 'rl-trainer[report]'") from error
    # In a script element a string may hold anything but the start of a tag.
    data = json.dumps({**shown, "live": live}).replace("<", "\\u003c")
    style, script = ((PAGE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{_text(title)}</title><style>{style}</style></head><body>"
        '<div id="top"></div><div id="charts"></div><div id="bottom"></div>'
        f'<script type="application/json" id="data">{data}</script>'
        f"<script>{get_plotlyjs()}</script><script>{script}</script></body></html>"
    )


def _headline(run: RunFiles) -> str:
    scores = [f"{_text(key.removeprefix('val-core/'))}: {_ends(run, key)}" for key in run.keys("val-core/")]
    steps, training = run.lines[-1]["step"], run.total("timing_s/step")
    beside = run.total("timing_s/testing") + run.total("timing_s/save_checkpoint")
    workers = run.config.get("trainer.n_workers_per_node", 0) + run.config.get(
        "trainer.n_rollout_workers_per_node", 0
    )
    hours = (training + beside) / 3600 * workers * run.config.get("trainer.nnodes", 1)
    facts = {
        "validation, first → last": "<br>".join(scores) or "none",
        "reward, first → last": _ends(run, "critic/score/mean"),
        "steps": str(steps),
        "training": _minutes(training),
        "validation and saving": _minutes(beside),
        "tokens": f"{run.total('perf/total_num_tokens'):,.0f}",
        "cost": f"{hours:.2f} worker-hours" if workers else "unknown",
    }
    cards = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in facts.items())
    return f"<div class=cards>{cards}</div>"


def _minutes(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _ends(run: RunFiles, key: str) -> str:
    values = [value for _, value in run.series(key)]
    return f"{values[0]:.3f} → {values[-1]:.3f}" if values else "none"


def _samples(runs: Sequence[RunFiles]) -> str:
    parts = []
    for run in runs:
        columns = run.samples
        if not columns:
            continue
        names = "".join(f"<th>after step {step}</th>" for step, _ in columns)
        rows = [list(answers) for answers in zip(*(rows for _, rows in columns), strict=False)]
        rows = rows[:SAMPLES]
        body = "".join(
            f"<tr><td>{_prompt(row[0]['prompt'])}</td>{''.join(map(_answer, row))}</tr>" for row in rows
        )
        of = f" of {_text(run.name)}" if len(runs) > 1 else ""
        table = f"<div class=wide><table><tr><th>prompt</th>{names}</tr>{body}</table></div>"
        parts.append(f"<h2>Samples{of}</h2>{table}")
    return "".join(parts)


def _answer(row: Mapping[str, Any]) -> str:
    marks = f"<span class=score>{row['score']:.2f}</span>" if row.get("score") is not None else ""
    marks += "<span class=cut>cut off</span>" if row.get("cut_off") else ""
    return f"<td>{marks}{_text(row['response'])}{_tokens(row.get('tokens', []))}</td>"


def _tokens(tokens: Sequence[tuple[str, float, bool]]) -> str:
    """Each token with its log-prob on demand; those that were not trained on are struck out."""
    if not tokens:
        return ""
    spans = "".join(
        f'<i class="{"" if trained else "masked"}" title="{log_prob:.3f}" style="--p:{-log_prob:.2f}">'
        f"{_text(piece)}</i>"
        for piece, log_prob, trained in tokens
    )
    return f"<details><summary>tokens and log-probs</summary><div class=tokens>{spans}</div></details>"


def _settings(runs: Sequence[RunFiles]) -> str:
    """What differs between the runs; of one run, what differs from the defaults; and all of it on demand."""
    defaults = {path: key.default for path, key in config_keys().items()}
    known = list(dict.fromkeys(key for run in runs for key in run.config))
    if not known:
        return ""
    if len(runs) > 1:
        heads, title = [run.name for run in runs], "Settings that differ"
        rows = {key: [run.config.get(key, "-") for run in runs] for key in known if key not in NOT_A_SETTING}
        rows = {key: values for key, values in rows.items() if any(one != values[0] for one in values)}
    else:
        heads, title = ["this run", "default"], "Settings, where they are not the defaults"
        both = {key: [runs[0].config[key], defaults.get(key, "-")] for key in known}
        rows = {key: values for key, values in both.items() if values[0] != values[1]}
    table = _table(["key", *heads], rows)
    whole = "".join(f"{_text(key)}: {_text(runs[0].config[key])}\n" for key in runs[0].config)
    all_of_it = f"<details><summary>the whole configuration</summary><pre>{whole}</pre></details>"
    return f"<h2>{title}</h2>{table}{all_of_it if len(runs) == 1 else ''}"


def _about(runs: Sequence[RunFiles]) -> str:
    known = list(dict.fromkeys(key for run in runs for key in run.about))
    if not known:
        return ""
    table = _table(
        [""] + [run.name for run in runs], {k: [run.about.get(k, "-") for run in runs] for k in known}
    )
    return f"<h2>Machine, versions, data</h2>{table}"


def _table(heads: Sequence[str], rows: Mapping[str, Sequence[object]]) -> str:
    """A table with a key and its values in each row."""
    head = "".join(f"<th>{_text(name)}</th>" for name in heads)
    cells = {key: "".join(f"<td>{_text(value)}</td>" for value in values) for key, values in rows.items()}
    body = "".join(f"<tr><td>{_text(key)}</td>{values}</tr>" for key, values in cells.items())
    return f"<div class=wide><table class=keys><tr>{head}</tr>{body}</table></div>"


def _prompt(prompt: object) -> str:
    """Chat messages as text, anything else as it is."""
    if isinstance(prompt, list):
        return _text("\n".join(f"{one.get('role')}: {one.get('content')}" for one in prompt))
    return _text(prompt)


def _text(value: object) -> str:
    return html.escape(str(value))
