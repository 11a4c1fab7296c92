"""What a checkpoint's files hold, kept beside them and compared before anything of them is used."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch.distributed as dist

from rl_workers.errors import CheckpointError

MANIFEST = "manifest.json"
_BLOCK = 1 << 24


def write_manifest(folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Describe every file of a folder that all ranks have written. Collective."""
    found = _digests(folder, sorted(path.name for path in folder.iterdir()), group)
    if dist.get_rank() == 0:
        (folder / MANIFEST).write_text(json.dumps(found, indent=1))


def check_manifest(folder: Path) -> None:
    """Compare a folder's files with what was written. Collective.

    Raises:
        CheckpointError: on every rank: a file is missing, shorter or longer, or holds other bytes.
    """
    try:
        wanted = json.loads((folder / MANIFEST).read_text())
        names = sorted(wanted)
        sizes = {name: int(size) for name, (size, _) in wanted.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} can't be read: {error}") from error
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file} has {file.stat().st_size} bytes, {size} were written")
    found = _digests(folder, names)
    changed = [name for name in names if found[name] != wanted[name]]
    if changed:
        raise CheckpointError(f"{folder / changed[0]} holds other bytes than were written")


def _digests(folder: Path, names: list[str], group: dist.ProcessGroup | None = None) -> dict[str, list[int]]:
    """Size and CRC-32 of each file; each rank reads some of them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = {name: [(folder / name).stat().st_size, _crc(folder / name)] for name in names[rank::world]}
    parts: list[dict[str, list[int]]] = [{}] * world
    dist.all_gather_object(parts, mine, group)
    return {name: entry for part in parts for name, entry in part.items()}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
