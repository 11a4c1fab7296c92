"""The models of a run: found before it starts, each at one version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rl_workers.config import ModelConfig
from rl_workers.errors import RLWorkersError
from rl_workers.model.hub import local_folder

from ..config.inputs import needs
from ..config.rules import check
from ..config.tree import PPOConfig
from ..errors import ConfigError


def models_of(config: PPOConfig) -> Iterator[tuple[str, ModelConfig]]:
    """The models that a run loads, by their key."""
    yield "actor_rollout_ref.model", config.actor_rollout_ref.model
    if needs(config, "values"):
        yield "critic.model", config.critic.model
    if config.reward.model_enable:
        yield "reward.model.model", config.reward.model.model


def pin_models(config: PPOConfig) -> None:
    """Find each model; of one on the hub keep the commit, so that each node and each resume has the same.

    Raises:
        ConfigError: a model is not there, or can't hold the run's rows.
    """
    for key, model in models_of(config):
        folder = description(model, key)
        if folder != Path(model.path):
            model.revision = folder.name
        else:
            rule = f"{key}.path={model.path} is a folder, which has no revisions: leave it empty"
            check(not model.revision, f"{key}.revision", model.revision, rule)
    tokenizer = config.reward.model.input_tokenizer
    if config.reward.model_enable and tokenizer and not Path(tokenizer).is_dir():
        description(ModelConfig(path=tokenizer), "reward.model.input_tokenizer")
    _check_positions(config)


def description(model: ModelConfig, key: str) -> Path:
    """A folder with a model's configuration and tokenizer; its weights may still be on the hub."""
    try:
        return Path(local_folder(model.path, model.revision, f"{key}.path", weights=False))
    except RLWorkersError as error:
        raise ConfigError(str(error)) from error


def _check_positions(config: PPOConfig) -> None:
    model = config.actor_rollout_ref.model
    file = description(model, "actor_rollout_ref.model") / "config.json"
    positions = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
    longest = config.data.max_prompt_length + config.data.max_response_length
    if positions and longest > positions:
        raise ConfigError(
            f"data.max_prompt_length + data.max_response_length = {longest} tokens, and the model "
            f"{model.path} has {positions} positions (max_position_embeddings): lower one of the two"
        )
