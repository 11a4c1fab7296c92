"""What a report draws: figures as plain data that plotly takes, colours and sizes left to the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .run_files import RunFiles

Figure = dict[str, Any]
Trace = dict[str, Any]

CHARTS: Mapping[str, tuple[str, ...]] = {
    "Response length (tokens)": ("response_length/mean",),
    "Share of responses cut off": ("response_length/clip_ratio",),
    "KL": ("actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty"),
    "Entropy": ("actor/entropy",),
    "Engine against trainer (k3 KL)": ("rollout_corr/k3_kl",),
    "Gradient norm": ("actor/grad_norm", "critic/grad_norm"),
    "Clipped share of tokens": ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "critic/vf_clipfrac"),
    "Critic's loss": ("critic/vf_loss",),
    "Explained variance of the critic": ("critic/vf_explained_var",),
    "Tokens per second": ("perf/throughput",),
    "Policy's age (steps)": ("training/staleness",),
}
SPREAD = {"critic/score/mean": "critic/score", "response_length/mean": "response_length"}
BESIDE_STEPS = {"testing": "validation", "save_checkpoint": "saving"}
TIMES = "timing_s/"


def figures(runs: Sequence[RunFiles]) -> list[Figure]:
    """All figures in which some run has something to show; every run has one colour throughout.

    Returns:
        Mappings with `title`, `traces` (plotly's), `dtick` (whole steps between ticks), `many` (whether a
        legend is needed).
    """
    validation = sorted({key for run in runs for key in run.keys("val-core/")})
    charts = {"Validation": tuple(validation), "Reward": ("critic/score/mean",), **CHARTS}
    charts["Memory (GB)"] = tuple(sorted({key for run in runs for key in run.keys("perf/max_memory")}))
    drawn = [_figure(title, _traces(runs, keys)) for title, keys in charts.items()]
    for run in runs:
        of = f" ({run.name})" if len(runs) > 1 else ""
        drawn.append(_figure(f"Where a step's time goes, in seconds{of}", _times(run)))
        drawn.append(_figure(f"Beside the steps, in seconds{of}", _beside(run)))
    return [figure for figure in drawn if figure["traces"]]


def _traces(runs: Sequence[RunFiles], keys: Sequence[str]) -> list[Trace]:
    traces: list[Trace] = []
    for colour, run in enumerate(runs):
        for place, key in enumerate(keys):
            points = run.series(key)
            if not points or (key == "training/staleness" and not any(value for _, value in points)):
                continue
            short = key.removeprefix("val-core/")
            name = short if len(runs) == 1 else run.name if len(keys) == 1 else f"{run.name}: {short}"
            own = colour if len(runs) > 1 else place
            dash = ("solid", "dot", "dash", "dashdot")[place % 4] if len(runs) > 1 else "solid"
            if key in SPREAD and len(runs) == 1:
                traces += _band(run, SPREAD[key], own)
            traces.append(_line(points, name, colour=own, line={"dash": dash}))
    return traces


def _band(run: RunFiles, key: str, colour: int) -> list[Trace]:
    """Smallest to largest as a filled band."""
    low, high = (_line(run.series(f"{key}/{end}"), f"{end}", colour=colour) for end in ("min", "max"))
    if not low["x"] or not high["x"]:
        return []
    hidden = {"mode": "lines", "line": {"width": 0}, "showlegend": False}
    return [low | hidden, high | hidden | {"fill": "tonexty", "band": True}]


def step_parts(line: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step's parts, exclusive: they add up to `timing_s/step`.

    The push of weights is a part of generation where the trainer's processes generate, and is
    taken out of it. Validation and saving are no part of a step.
    """
    parts = {key.removeprefix(TIMES): value for key, value in line.items() if key.startswith(TIMES)}
    whole = parts.pop("step", 0.0)
    for name in BESIDE_STEPS:
        parts.pop(name, None)
    pushed = min(parts.pop("push_weights/max", 0.0), parts.get("gen", 0.0))
    parts = {name: value for name, value in parts.items() if "/" not in name}
    if pushed:
        parts["gen"] -= pushed
        parts["push_weights"] = pushed
    parts["other"] = max(0.0, whole - sum(parts.values()))
    return parts


def _times(run: RunFiles) -> list[Trace]:
    steps = [(line["step"], step_parts(line)) for line in run.lines if f"{TIMES}step" in line]
    names = list(dict.fromkeys(name for _, parts in steps for name in parts))
    return [
        _line([(step, parts.get(name, 0.0)) for step, parts in steps], name, colour=place)
        | {"stackgroup": "one", "mode": "lines"}
        for place, name in enumerate(names)
    ]


def _beside(run: RunFiles) -> list[Trace]:
    return [
        _line(points, name, colour=place) | {"type": "bar"}
        for place, (key, name) in enumerate(BESIDE_STEPS.items())
        if (points := run.series(f"{TIMES}{key}"))
    ]


def _line(points: Sequence[tuple[int, float]], name: str, **more: Any) -> Trace:
    steps, values = [step for step, _ in points], [value for _, value in points]
    return {"type": "scatter", "mode": "lines+markers", "x": steps, "y": values, "name": name, **more}


def _figure(title: str, traces: list[Trace]) -> Figure:
    steps = [step for trace in traces for step in trace["x"]]
    named = sum(trace.get("showlegend", True) for trace in traces)
    return {"title": title, "traces": traces, "dtick": _tick(steps), "many": named > 1}


def _tick(steps: Sequence[int]) -> int:
    """Whole steps between ticks, so that there are at most eight: 1, 2, 5, 10, ..."""
    least = max(1.0, (max(steps) - min(steps)) / 8) if steps else 1.0
    power = 10 ** math.floor(math.log10(least))
    return int(next(power * one for one in (1, 2, 5, 10) if power * one >= least))
