"""`report.html`: one self-contained page about a run, drawn by plotly from the run's own files."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from .tracking import read_json_lines, read_metrics

Line = dict[str, Any]
SAMPLES = 12
CHARTS = {
    "Reward": ["critic/score/mean"],
    "Response length (tokens)": ["response_length/mean", "response_length/max"],
    "Entropy": ["actor/entropy"],
    "Engine against trainer (k3 KL)": ["rollout_corr/k3_kl"],
    "Gradient norm": ["actor/grad_norm"],
    "Critic": ["critic/vf_loss", "critic/vf_explained_var"],
}
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid #ddd;padding:.3em .6em;text-align:left;
vertical-align:top}pre{background:#f6f6f6;padding:1em;overflow:auto}td{white-space:pre-wrap}"""


def write_report(run: Path) -> Path:
    """Write `<run>/report.html` from `metrics.jsonl`, `config.yaml` and the kept samples.

    Raises:
        DataError: the folder holds no metrics.
    """
    found: list[Line] = read_metrics(run / "metrics.jsonl")
    lines = [{key: value for key, value in line.items() if value is not None} for line in found]
    if not lines:
        raise DataError(f"{run} holds no metrics.jsonl with a finished step: is it the folder of a run?")
    config = run / "config.yaml"
    body = [
        f"<h1>{html.escape(run.name)}</h1>",
        _summary(lines),
        *_charts(lines),
        *_samples(run / "generations"),
        f"<h2>Configuration</h2><pre>{html.escape(config.read_text() if config.is_file() else '')}</pre>",
    ]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(run.name)}</title>'
    )
    page += f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>"
    target = run / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def _summary(lines: Sequence[Line]) -> str:
    keys = [key for key in lines[-1] if key.startswith("val-core/")]
    rows = []
    for key in keys:
        values = [line[key] for line in lines if key in line]
        rows.append(f"<tr><td>{html.escape(key)}</td><td>{values[0]:.3f}</td><td>{values[-1]:.3f}</td></tr>")
    seconds = sum(line.get("timing_s/step", 0.0) for line in lines)
    text = f"<p>{lines[-1]['step']} steps, {seconds / 60:.1f} minutes of training.</p>"
    head = "<table><tr><th>Validation</th><th>first</th><th>last</th></tr>"
    return text + (f"{head}{''.join(rows)}</table>" if rows else "")


def _charts(lines: Sequence[Line]) -> list[str]:
    import plotly.graph_objects as go
    from plotly.offline import get_plotlyjs

    validation = sorted({key for line in lines for key in line if key.startswith("val-core/")})
    timing = sorted({k for line in lines for k in line if k.startswith("timing_s/") and k != "timing_s/step"})
    charts = {"Validation": validation, **CHARTS, "Seconds per step": timing}
    parts = [f"<script>{get_plotlyjs()}</script>"]
    for title, keys in charts.items():
        figure = go.Figure()
        for key in keys:
            points = [(line["step"], line[key]) for line in lines if key in line]
            if points:
                steps, values = zip(*points, strict=True)
                stack = "one" if keys is timing else None
                figure.add_scatter(x=steps, y=values, name=key, stackgroup=stack, mode="lines+markers")
        if figure.data:
            figure.update_layout(
                title=title, height=320, template="plotly_white", showlegend=len(keys) > 1, xaxis_title="step"
            )
            parts.append(figure.to_html(full_html=False, include_plotlyjs=False))
    return parts


def _samples(folder: Path) -> list[str]:
    files = sorted(folder.glob("step_*.jsonl"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if not files:
        return []
    before, after = (
        [row for row in read_json_lines(file) if row["greedy"]] for file in (files[0], files[-1])
    )
    rows, steps = [], [file.stem.rpartition("_")[2] for file in (files[0], files[-1])]
    stride = max(1, len(before) // SAMPLES)
    for first, last in list(zip(before, after, strict=False))[::stride][:SAMPLES]:
        cells = [_prompt(first["prompt"])]
        cells += [f"{one['response']}\n[{one['score']:.2f}]" for one in (first, last)]
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    names = f"<th>after step {steps[0]}</th><th>after step {steps[1]}</th>"
    return [f"<h2>Samples</h2><table><tr><th>prompt</th>{names}</tr>{''.join(rows)}</table>"]


def _prompt(prompt: object) -> str:
    """Chat messages as text, anything else as it is."""
    if isinstance(prompt, list):
        return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
    return str(prompt)
