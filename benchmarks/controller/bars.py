"""The bars of the controller's benchmark: calls against bare Ray, rows against the reference."""

from __future__ import annotations


def bars(ours: dict[str, float], reference: dict[str, float] | None) -> dict[str, tuple[float, str, float]]:
    """Name -> (figure, "at least" or "at most", bar)."""
    found = {
        "no-op on 2 workers / bare Ray calls": (ours["noop_2"] / ours["bare_2"], "at most", 1.3),
        "no-op on 8 workers / bare Ray calls": (ours["noop_8"] / ours["bare_8"], "at most", 1.3),
        "driver bytes of six calls / batch": (ours["chain_driver_bytes"] / (256 << 20), "at most", 0.02),
        "planning for 1,024 workers, ms": (1e3 * ours["plan_1024"], "at most", 20.0),
        "planning 1,024 / 256 workers": (ours["plan_1024"] / ours["plan_256"], "at most", 5.0),
        "planning a future for 1,024 workers, ms": (1e3 * ours["plan_future_1024"], "at most", 20.0),
    }
    if reference is not None:
        for name, key, bar in [
            ("64 MB there and back, read-only", "echo_64", 6.0),
            ("512 MB there and back, read-only", "echo_512", 6.0),
            ("64 MB there and back, written", "write_64", 4.0),
            ("512 MB there and back, written", "write_512", 4.0),
            ("six calls over 256 MB", "chain", 3.0),
        ]:
            found[f"{name}, reference / ours"] = (reference[key] / ours[key], "at least", bar)
    return found
