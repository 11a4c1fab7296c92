"""From a YAML file and dotted overrides to the typed tree, with errors before anything starts."""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import ConfigError
from .tree import DERIVED, PPOConfig

T = TypeVar("T")
CONFIG_FOLDER = Path(__file__).parent / "shipped"


@dataclass(frozen=True)
class Key:
    """One leaf of the configuration tree."""

    path: str
    type: str
    default: object
    doc: str


def load_config(source: str | Path | None = None, overrides: Sequence[str] = ()) -> PPOConfig:
    """Read a configuration.

    Args:
        source: a YAML file, or the name of one that ships with this package (`quickstart`, `tiny_grpo`);
            None: the defaults.
        overrides: `dotted.key=value`, read as YAML; they win over the file.

    Raises:
        ConfigError: the file is missing, a key is unknown (the nearest one is named), or a value has
            the wrong type.
    """
    file = OmegaConf.create({}) if source is None else _read_yaml(_find(source))
    check_keys(_leaves(file), "the configuration file")
    tree = OmegaConf.merge(OmegaConf.structured(PPOConfig), file) if source is not None else _defaults()
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {text!r}: write it as dotted.key=value, e.g. trainer.seed=1")
        check_keys([key], "an override")
        _check_list(key, value)
        try:
            tree = OmegaConf.merge(tree, OmegaConf.from_dotlist([f"{key}={value}"]))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key}={value}: {_first_line(error)}") from error
    return omega_conf_to_dataclass(cast(DictConfig, tree), PPOConfig)


def omega_conf_to_dataclass(node: DictConfig | ListConfig | Mapping[str, Any], dataclass_type: type[T]) -> T:
    """Turn a mapping (OmegaConf or plain) into `dataclass_type`, checking keys and types.

    Raises:
        ConfigError: a key or a value does not fit the dataclass.
    """
    try:
        tree = OmegaConf.merge(OmegaConf.structured(dataclass_type), node)
        return cast(T, OmegaConf.to_object(tree))
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error


def to_yaml(config: PPOConfig) -> str:
    """The resolved tree as YAML, as it is kept in the run's folder; it reads back to the same run."""
    tree = cast(DictConfig, OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(config))))
    for path in DERIVED:
        group, _, name = path.rpartition(".")
        del OmegaConf.select(tree, group)[name]
    return OmegaConf.to_yaml(tree)


def check_keys(keys: Sequence[str], where: str) -> None:
    """Raise a `ConfigError` for the first key that is in no dataclass of the tree."""
    known = config_keys()
    groups = {path.rpartition(".")[0] for path in known}
    for key in keys:
        if key in known or key in groups:
            continue
        if key in DERIVED:
            raise ConfigError(f"{key!r} in {where} follows from another key: set {DERIVED[key]}")
        raise ConfigError(f"{key!r} in {where} is not a configuration key.{_suggestion(key, list(known))}")


@cache
def config_keys(root: type = PPOConfig) -> dict[str, Key]:
    """Every leaf that a user may set, by its dotted path, with type, default and documentation."""
    return {key.path: key for key in _walk(root, "") if key.path not in DERIVED}


def _walk(cls: type, prefix: str) -> list[Key]:
    hints, docs, keys = get_type_hints(cls), field_docs(cls), []
    instance = cls()
    for field in fields(cls):
        path, hint = prefix + field.name, hints[field.name]
        if is_dataclass(hint):
            keys += _walk(cast(type, hint), path + ".")
        else:
            name = getattr(hint, "__name__", str(hint)) if "[" not in str(hint) else str(hint)
            keys.append(Key(path, name, getattr(instance, field.name), docs.get(field.name, "")))
    return keys


def field_docs(cls: type) -> dict[str, str]:
    """The string that stands under each field of a dataclass (its documentation by convention)."""
    body = cast(ast.ClassDef, ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]).body
    docs = {}
    for item, after in itertools.pairwise(body):
        if (
            isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[item.target.id] = " ".join(after.value.value.split())
    return docs


def _find(source: str | Path) -> Path:
    path = Path(source)
    if path.is_file():
        return path
    shipped = CONFIG_FOLDER / f"{source}.yaml"
    if shipped.is_file():
        return shipped
    names = ", ".join(sorted(file.stem for file in CONFIG_FOLDER.glob("*.yaml")))
    raise ConfigError(f"{str(source)!r} is neither a file nor a configuration that we ship ({names})")


def _read_yaml(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
    except Exception as error:  # the YAML parser has its own tree of errors
        raise ConfigError(f"{path} can't be read as YAML: {_first_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} must hold a mapping of sections (data, trainer, ...), not a list")
    return loaded


def _defaults() -> DictConfig:
    return cast(DictConfig, OmegaConf.structured(PPOConfig))


def _leaves(node: DictConfig, prefix: str = "") -> list[str]:
    paths: list[str] = []
    for name, value in node.items_ex(resolve=False):
        path = f"{prefix}{name!s}"
        paths += _leaves(value, path + ".") if isinstance(value, DictConfig) and value else [path]
    return paths


def _check_list(key: str, value: str) -> None:
    """Raise a `ConfigError` where one value is given for a list."""
    found = config_keys().get(key)
    if found is not None and found.type.startswith("list[") and not value.startswith("["):
        raise ConfigError(
            f"{key}={value}: the value is a list, also where it has one entry: '{key}=[{value}]'"
        )


def _suggestion(key: str, known: list[str]) -> str:
    """The nearest key by its whole path, else by its last segment."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if not near:
        last = key.rpartition(".")[2]
        by_last = {path.rpartition(".")[2]: path for path in known}
        near = [by_last[name] for name in difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.6)]
    return f" Did you mean {near[0]!r}?" if near else " `rl-trainer keys` lists them all."


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0]
