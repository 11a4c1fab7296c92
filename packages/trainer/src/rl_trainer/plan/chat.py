"""One chat template for the whole run: what the keys of `data` ask for, written into its text.

Whoever renders messages, in training, validation or a tool's loop, and later the exported model, has the same
tokenizer with the same template: nobody has to pass the same arguments everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl_workers.model.hub import load_tokenizer

from ..config.rules import check
from ..config.tree import PPOConfig
from ..errors import ConfigError


def chat_template(config: PPOConfig) -> str:
    """The template's text; "" where no key asks for another than the tokenizer's.

    Raises:
        ConfigError: there is no template, it does not read an argument, or it can't be rendered.
    """
    data, policy = config.data, config.actor_rollout_ref
    keys = ("chat_template", "chat_template_kwargs", "system_prompt", "response_prefill")
    asked = [f"data.{key}" for key in keys if getattr(data, key)]
    if not asked:
        return ""
    rule = "the tool loop renders whole answers, which would lack it: leave it empty"
    looped = bool(data.response_prefill) and policy.rollout.agent_loop == "tool"
    check(not looped, "data.response_prefill", data.response_prefill, rule)
    if data.chat_template and not Path(data.chat_template).is_file():
        raise ConfigError(f"data.chat_template: there is no file {data.chat_template}")
    tokenizer = load_tokenizer(policy.model)
    if data.chat_template:
        tokenizer.chat_template = Path(data.chat_template).read_text(encoding="utf-8")
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{', '.join(asked)}: the tokenizer of {policy.model.path} has no chat template: "
            "name a file in data.chat_template"
        )
    own = str(tokenizer.get_chat_template())
    for name in data.chat_template_kwargs:
        rule = "the chat template does not read it"
        check(name in own, f"data.chat_template_kwargs.{name}", data.chat_template_kwargs[name], rule)
    tokenizer.chat_template = text = written_in(
        own, data.chat_template_kwargs, data.system_prompt, data.response_prefill
    )
    _try(tokenizer)
    return text


def written_in(template: str, arguments: dict[str, Any], system: str, prefill: str) -> str:
    """A template that renders as this one does with these arguments, this system prompt where the messages
    bring none, and this beginning of the answer."""
    head = [f"{{% set {name} = {_literal(value)} %}}\n" for name, value in arguments.items()]
    if system:
        message = f"[{{'role': 'system', 'content': {_literal(system)}}}]"
        head.append(
            "{% if messages[0]['role'] != 'system' %}\n"
            f"{{% set messages = {message} + messages %}}\n"
            "{% endif %}\n"
        )
    tail = f"{{% if add_generation_prompt %}}{{{{ {_literal(prefill)} }}}}{{% endif %}}" if prefill else ""
    return "".join([*head, template.removesuffix("\n"), tail])


def _literal(value: Any) -> str:
    """A value as Jinja writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(str(k))}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _try(tokenizer: Any) -> None:
    """Render one message: a template's mistake or its refusal of a system prompt is told at once."""
    try:
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "a"}], add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # Jinja's own tree, and whatever the template raises
        raise ConfigError(
            "the chat template can't be rendered with data.chat_template, chat_template_kwargs, "
            f"system_prompt and response_prefill as they are: {type(error).__name__}: {error}"
        ) from error
