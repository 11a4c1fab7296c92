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

from rl_rollout.errors import RLRolloutError

from ..errors import ConfigError
from .tree import DERIVED, PPOConfig

T = TypeVar("T")
BOOLEANS = ("true", "false", "yes", "no", "on", "off", "0", "1")
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
    words = [text.partition("=") for text in overrides]
    for text, (key, equals, _) in zip(overrides, words, strict=True):
        if not equals or not key:
            raise ConfigError(f"override {text!r}: write it as dotted.key=value, e.g. trainer.seed=1")
    check_keys([key for key, _, _ in words], "an override")
    for key, _, value in words:
        _check_form(key, value)
    try:
        tree = OmegaConf.merge(tree, OmegaConf.from_dotlist(list(overrides)))
    except OmegaConfBaseException:
        tree = _merged_one_by_one(cast(DictConfig, tree), words)
    return _built(cast(DictConfig, tree), PPOConfig)


def _merged_one_by_one(tree: DictConfig, words: Sequence[tuple[str, str, str]]) -> DictConfig:
    """Slower, but knows which override is wrong."""
    for key, _, value in words:
        try:
            tree = cast(DictConfig, OmegaConf.merge(tree, OmegaConf.from_dotlist([f"{key}={value}"])))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{key}={value}: {_first_line(error)}") from error
    return tree


def omega_conf_to_dataclass(node: DictConfig | ListConfig | Mapping[str, Any], dataclass_type: type[T]) -> T:
    """Turn a mapping (OmegaConf or plain) into `dataclass_type`, checking keys and types.

    Raises:
        ConfigError: a key or a value does not fit the dataclass.
    """
    try:
        tree = OmegaConf.merge(OmegaConf.structured(dataclass_type), node)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    return _built(cast(DictConfig, tree), dataclass_type)


def _built(tree: DictConfig, dataclass_type: type[T]) -> T:
    """The dataclass that a structured tree stands for; its classes check themselves as they are made."""
    try:
        return cast(T, OmegaConf.to_object(tree))
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    except RLRolloutError as error:
        raise ConfigError(f"actor_rollout_ref.rollout, or its val: {error}") from error


def to_yaml(config: PPOConfig) -> str:
    """The resolved tree as YAML, as it is kept in the run's folder; it reads back to the same run."""
    tree = cast(DictConfig, OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(config))))
    for path in DERIVED:
        group, _, name = path.rpartition(".")
        del OmegaConf.select(tree, group)[name]
    return OmegaConf.to_yaml(tree)


def check_keys(keys: Sequence[str], where: str) -> None:
    """Raise a `ConfigError` that names every key that is in no dataclass of the tree."""
    known = config_keys()
    groups = {path.rpartition(".")[0] for path in known}
    problems = []
    for key in keys:
        if key in known or key in groups or _is_entry(key):
            continue
        if key in DERIVED:
            problems.append(f"{key!r} in {where} follows from another key: set {DERIVED[key]}")
        else:
            hint = _suggestion(key, list(known))
            problems.append(f"{key!r} in {where} is not a configuration key.{hint}")
    if problems:
        raise ConfigError("\n".join(problems))


@cache
def config_keys(root: type = PPOConfig) -> dict[str, Key]:
    """Every leaf that a user may set, by its dotted path, with type, default and documentation."""
    return {key.path: key for key in _walk(root(), "") if key.path not in DERIVED}


def _walk(node: Any, prefix: str) -> list[Key]:
    """The leaves below a dataclass; defaults are those of the whole tree, which a parent may set."""
    hints, docs, keys = get_type_hints(type(node)), field_docs(type(node)), []
    for field in fields(node):
        path, hint, value = prefix + field.name, hints[field.name], getattr(node, field.name)
        if is_dataclass(value):
            keys += _walk(value, path + ".")
        else:
            name = getattr(hint, "__name__", str(hint)) if "[" not in str(hint) else str(hint)
            keys.append(Key(path, name, value, docs.get(field.name, "")))
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


def _is_entry(key: str) -> bool:
    """Whether a key is an entry of a mapping, e.g. an option of a loss."""
    parent = config_keys().get(key.rpartition(".")[0])
    return parent is not None and parent.type.startswith("dict[")


def _check_form(key: str, value: str) -> None:
    """Raise a `ConfigError` where one value is given for a list, or a number for a yes or no."""
    found = config_keys().get(key)
    if found is not None and found.type == "bool" and value.lower() not in BOOLEANS:
        raise ConfigError(f"{key}={value}: write true or false")
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
