"""The bars of the protocol's benchmark: columns against torch, moving a batch against the reference."""

from __future__ import annotations


def bars(ours: dict[str, float], reference: dict[str, float] | None) -> dict[str, tuple[float, str, float]]:
    """Name -> (figure, "at least" or "at most", bar)."""
    found = {
        "concat against bare torch.cat": (ours["concat"] / ours["bare_cat"], "at most", 1.3),
        "chunk, select, slice, union of 256 MB, ms": (
            1e3 * max(ours[key] for key in ("chunk", "select", "slice", "union")),
            "at most",
            5.0,
        ),
        "reader's memory per byte of batch": (ours["growth"], "at most", 0.1),
        "import after torch and tensordict, ms": (1e3 * ours["import"], "at most", 300.0),
    }
    if reference is not None:
        theirs, mine = reference["put"] + reference["get"], ours["put"] + ours["get"]
        found["put and get of 512 MB, reference / ours"] = (theirs / mine, "at least", 8.0)
    return found
