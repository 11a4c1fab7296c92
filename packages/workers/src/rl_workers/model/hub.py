"""Models by id: a snapshot in the hub's cache, made once on each node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rl_workers.config import ModelConfig
from rl_workers.errors import WorkerConfigError

DESCRIPTION = ["*.json", "*.jinja", "*.model", "*.py", "*.tiktoken", "*.txt"]
"""Files that say what a model is: configuration, tokenizer, code."""
WEIGHTS = ["*.safetensors"]
LEFT_OUT = ["original/*", "onnx/*", "consolidated*"]
"""The same weights in forms that nobody reads here."""


def local_folder(path: str, revision: str = "", key: str = "model.path", weights: bool = True) -> str:
    """The folder of a model on this machine.

    Args:
        path: a folder, or a model's id on the hub (`owner/name`), which is downloaded into the hub's cache
            where it is not there yet; what was downloaded once is found without a network.
        revision: branch, tag or commit of an id; "": main.
        key: what `path` is called, for errors.
        weights: False: only the configuration and the tokenizer.

    Returns:
        `path` where it is a folder with a model, else a folder of the cache whose name is the commit.

    Raises:
        WorkerConfigError: it is neither; or the model can't be reached.
    """
    if (Path(path) / "config.json").is_file():
        return path
    if Path(path).is_dir():
        raise WorkerConfigError(f"{key}={path!r} is a folder without a Hugging Face model (config.json)")
    from huggingface_hub import snapshot_download

    wanted = [*DESCRIPTION, *(WEIGHTS if weights else [])]
    try:
        folder = snapshot_download(
            path, revision=revision or None, allow_patterns=wanted, ignore_patterns=LEFT_OUT
        )
    except Exception as error:  # the hub's client, its HTTP library and the file system each have their own
        raise WorkerConfigError(_what_to_do(path, revision, key, error)) from error
    if not (Path(folder) / "config.json").is_file():
        raise WorkerConfigError(f"{key}={path!r}: what the hub has under this name holds no config.json")
    return folder


def localized(model: ModelConfig, key: str = "model.path") -> ModelConfig:
    """The same model with the folder on this machine as its path."""
    return replace(model, path=local_folder(model.path, model.revision, key))


def load_tokenizer(model: ModelConfig, chat_template: str = "") -> Any:
    """A model's tokenizer, with another chat template in place of its own where one is given."""
    from transformers import AutoTokenizer

    folder = local_folder(model.path, model.revision, weights=False)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    if chat_template:
        tokenizer.chat_template = chat_template
    return tokenizer


def _what_to_do(path: str, revision: str, key: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    neither = f"{key}={path!r} is neither a folder with a Hugging Face model (config.json) nor a model's id"
    if isinstance(error, errors.HFValidationError):
        return f"{neither} (owner/name)"
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{path}"
        return f"{path} is gated: ask for access on {page}, then set HF_TOKEN (or hf auth login) on each node"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{path} has no revision {revision!r} on the hub"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{neither} that {constants.ENDPOINT} knows; a private one needs HF_TOKEN"
    if isinstance(error, errors.LocalEntryNotFoundError):
        off = " (HF_HUB_OFFLINE is set)" if constants.HF_HUB_OFFLINE else ""
        version = f" --revision {revision}" if revision else ""
        return (
            f"{neither} in the cache {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} is not reached{off}: "
            f"run `hf download {path}{version}` where there is a network and bring the cache here, or name a "
            "folder"
        )
    return (
        f"{path} can't be had from {constants.ENDPOINT}: {type(error).__name__}: {str(error).strip()[:200]}"
    )
