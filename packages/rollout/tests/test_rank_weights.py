from __future__ import annotations

from pathlib import Path

from ranks import run_ranks


def test_streamed_weights_and_rows_arrive_whole_from_two_ranks(
    models: dict[str, str], tmp_path: Path
) -> None:
    first, second = run_ranks("stream", tmp_path, path=models["tied"])
    for report in (first, second):
        assert all(report["equal"])
        assert report["shared"]
        assert report["gathered"] == 5  # 3 rows of rank 0 and 2 of rank 1
        assert report["own"]
        assert report["difference"] < 1e-5
