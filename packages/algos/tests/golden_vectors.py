"""Reads the golden vectors and compares results with them; counts the cases that are left out, by reason."""

from __future__ import annotations

import functools
import json
import lzma
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

FOLDER = Path(__file__).parent / "golden"
MASKS = ("response_mask", "action_mask", "completion_mask", "loss_mask")
LEFT_OUT: Counter[str] = Counter()
COMPARED: Counter[str] = Counter()
SEEN: set[str] = set()


class LeftOut(Exception):  # noqa: N818
    """Raised by an adapter for a case in which the reference is wrong or does something else; holds the
    reason."""


@dataclass
class Case:
    id: str
    function: str
    params: dict[str, Any]
    tags: list[str]
    rtol: float
    atol: float
    raises: str | None
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    outputs64: dict[str, Any]

    @property
    def mask(self) -> torch.Tensor | None:
        for name in MASKS:
            if name in self.inputs:
                return self.inputs[name]
        return None


@functools.cache
def cases(family: str) -> list[Case]:
    raw = json.loads(lzma.decompress((FOLDER / f"{family}.json.xz").read_bytes()))
    tensors = load(lzma.decompress((FOLDER / f"{family}.safetensors.xz").read_bytes()))

    def values(part: dict[str, Any]) -> dict[str, Any]:
        return {name: _decode(value, tensors) for name, value in part.items()}

    return [
        Case(
            c["id"],
            c["function"],
            c["params"],
            c["tags"],
            c.get("tolerance", {}).get("rtol", 0.0),
            c.get("tolerance", {}).get("atol", 0.0),
            c.get("raises"),
            values(c["inputs"]),
            values(c.get("outputs", {})),
            values(c.get("outputs_fp64", {})),
        )
        for c in raw
    ]


def check(family: str, prefix: str, adapter: Any, names: tuple[str, ...] = ()) -> None:
    """Run `adapter(case) -> {output name: value}` over the cases whose id begins with the prefix."""
    chosen = [c for c in cases(family) if c.id.startswith(prefix)]
    assert chosen, f"no golden case begins with {prefix}"
    wrong = []
    for case in chosen:
        SEEN.add(case.id)
        try:
            if case.raises:
                raise LeftOut("the reference raises")
            got = adapter(case)
        except LeftOut as reason:
            LEFT_OUT[f"{family}: {reason}"] += 1
            continue
        COMPARED[family] += 1
        wanted = {k: v for k, v in case.outputs.items() if k in got}
        assert wanted, f"{case.id}: nothing to compare among {sorted(case.outputs)}"
        wrong += [f"{case.id} {name}" for name in wanted if not _agrees(case, name, got[name])]
    assert not wrong, f"{len(wrong)} outputs differ: {wrong[:12]}"


def never_checked() -> Counter[str]:
    """Cases that no test of this run has compared or left out, by the first two parts of their ids."""
    families = (path.name.removesuffix(".json.xz") for path in FOLDER.glob("*.json.xz"))
    unseen = (case.id for family in families for case in cases(family) if case.id not in SEEN)
    return Counter("/".join(name.split("/")[:2]) for name in unseen)


def grad(loss: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_()


def _agrees(case: Case, name: str, got: Any) -> bool:
    references = [part[name] for part in (case.outputs, case.outputs64) if name in part]
    return any(_close(got, reference, case) for reference in references)


def _close(got: Any, reference: Any, case: Case) -> bool:
    if isinstance(reference, torch.Tensor):
        got = torch.as_tensor(got).detach().double()
        if got.numel() != reference.numel():
            return False
        got, reference = got.reshape(reference.shape), reference.double()
        mask = case.mask
        if mask is not None and "tool_mask" in case.inputs:
            mask = mask * case.inputs["tool_mask"]
        if mask is not None and mask.shape == reference.shape[: mask.dim()] and reference.dim() >= 2:
            keep = mask.bool()
            got, reference = got[keep], reference[keep]
        near = torch.isclose(got, reference, rtol=case.rtol, atol=case.atol, equal_nan=True)
        return bool(near.all())
    if isinstance(reference, dict):
        # Metrics: counts and shares are float32 in the references, whatever the inputs are.
        case = replace(case, rtol=max(case.rtol, 2e-5), atol=max(case.atol, 2e-6))
        return all(_close(got[k], v, case) for k, v in reference.items() if k in got)
    if isinstance(reference, list):
        return len(got) == len(reference) and all(
            _close(a, b, case) for a, b in zip(got, reference, strict=True)
        )
    a, b = float(got), float(reference)
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= case.atol + case.rtol * abs(b)


def _decode(value: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    kind = value["kind"]
    if kind == "tensor":
        return tensors[value["key"]].reshape(value["shape"]).clone()
    if kind == "ndarray":
        return np.array(_numbers(value["value"]), dtype=value["dtype"])
    if kind == "object_array":
        return np.array(value["value"], dtype=object)
    return _numbers(value["value"])


def _numbers(x: Any) -> Any:
    if isinstance(x, str) and x in ("nan", "inf", "-inf"):
        return float(x)
    if isinstance(x, list):
        return [_numbers(v) for v in x]
    if isinstance(x, dict):
        return {k: _numbers(v) for k, v in x.items()}
    return x
