"""Columns of a whole batch: selected, split off, renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensordict import TensorDict

from rl_protocol.contents import Contents
from rl_protocol.errors import MissingColumnError
from rl_protocol.meta import pick_meta


def _require(contents: Contents, tensors: Iterable[str], objects: Iterable[str]) -> None:
    present = contents.tensors
    lacking = [name for name in tensors if name not in present]
    lacking_objects = [name for name in objects if name not in contents.objects]
    if lacking or lacking_objects:
        raise MissingColumnError(
            f"no tensor columns {lacking} and no object columns {lacking_objects}; it holds tensors "
            f"{sorted(present)} and objects {sorted(contents.objects)}."
        )


def select(
    contents: Contents,
    tensors: Iterable[str] | None,
    objects: Iterable[str] | None,
    meta: Iterable[str] | None,
) -> Contents:
    """The named columns and meta keys; None means all of that kind."""
    present = contents.tensors
    names = list(present) if tensors is None else list(tensors)
    object_names = list(contents.objects) if objects is None else list(objects)
    _require(contents, names, object_names)
    return Contents.of(
        None if contents.batch is None else {name: present[name] for name in names},
        {name: contents.objects[name] for name in object_names},
        pick_meta(contents.meta, meta),
        contents.rows,
    )


def split_off(
    contents: Contents, tensors: Sequence[str], objects: Sequence[str], meta: Iterable[str]
) -> tuple[Contents, Contents]:
    """The named columns and meta keys (without tensors where none is named), and what is left."""
    taken_meta = pick_meta(contents.meta, meta)
    _require(contents, tensors, objects)
    present, batch = contents.tensors, contents.batch
    taken = Contents.of(
        {name: present[name] for name in tensors} if tensors else None,
        {name: contents.objects[name] for name in objects},
        taken_meta,
        contents.rows,
    )
    if batch is not None:
        left = {name: column for name, column in present.items() if name not in tensors}
        batch = TensorDict(left, batch_size=batch.batch_size)
    rest = Contents(
        batch,
        {name: column for name, column in contents.objects.items() if name not in objects},
        {key: value for key, value in contents.meta.items() if key not in taken_meta},
    )
    return taken, rest


def rename(contents: Contents, mapping: Mapping[str, str]) -> Contents:
    """The columns under new names, old -> new, all at once."""
    return contents.with_columns(
        {mapping.get(name, name): column for name, column in contents.tensors.items()},
        {mapping.get(name, name): column for name, column in contents.objects.items()},
        contents.rows,
    )
