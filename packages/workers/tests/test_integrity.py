"""Nothing of a checkpoint that was changed is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from workers_ranks import run_ranks

from rl_workers.errors import CheckpointError
from rl_workers.fsdp.integrity import MANIFEST, check_manifest, write_manifest


def damaged(folder: str, kinds: list[str]) -> dict[str, str]:
    """What is said of each kind of damage, on this rank."""
    told = {}
    for kind in kinds:
        place = Path(folder) / kind
        if dist.get_rank() == 0:
            place.mkdir()
            for name, size in (("one", 5000), ("two", 300), ("three", 0)):
                (place / name).write_bytes(os.urandom(size))
        dist.barrier()
        write_manifest(place)
        if dist.get_rank() == 0:
            damage(place, kind)
        dist.barrier()
        try:
            check_manifest(place)
        except CheckpointError as error:
            told[kind] = str(error)
    return told


def damage(folder: Path, kind: str) -> None:
    one, manifest = folder / "one", folder / MANIFEST
    data = bytearray(one.read_bytes())
    data[4321] ^= 4
    actions: dict[str, Any] = {
        "flipped": lambda: one.write_bytes(data),
        "cut": lambda: one.write_bytes(data[:-1]),
        "gone": one.unlink,
        "unlisted": manifest.unlink,
        "torn": lambda: manifest.write_text(manifest.read_text()[:-9]),
        "list": lambda: manifest.write_text("[1]"),
        "whole": lambda: None,
    }
    actions[kind]()


def test_each_rank_says_which_file_was_changed(tmp_path: Path) -> None:
    kinds = ["flipped", "cut", "gone", "unlisted", "torn", "list", "whole"]
    first, second = run_ranks(tmp_path, 2, damaged, str(tmp_path), kinds)
    assert first == second and "whole" not in first
    assert "one holds other bytes" in first["flipped"]
    assert "4999 bytes, 5000 were written" in first["cut"]
    assert "one is missing" in first["gone"]
    assert all(f"{MANIFEST} can't be read" in first[kind] for kind in ("unlisted", "torn", "list"))
