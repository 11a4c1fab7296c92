"""Chat messages as token ids: what the template writes is control, what people and tools wrote is text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from rl_rollout.errors import ChatTemplateError

Message = Mapping[str, Any]

# Noncharacters of Unicode, which no text holds: they mark places in what a template renders.
_OPEN, _CLOSE, _TURN, _NEW = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_HIDDEN = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


def encode_chat(
    tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool = True, **template: Any
) -> list[int]:
    """Token ids of messages as the tokenizer's chat template renders them.

    A special token's name inside a message (`<|im_end|>` in a question about templates) is encoded as the
    text that it is: only the template itself writes control tokens.

    Args:
        tokenizer: of transformers, with a chat template.
        messages: `{role, content}` and what else the template reads; values that are None are left out.
        add_generation_prompt: end with the header of the policy's turn.
        template: further variables of the template.

    Raises:
        ChatTemplateError: there is no template, or it refuses these messages.
    """
    rendered, hidden = _render(tokenizer, messages, add_generation_prompt, template)
    return _encode(tokenizer, rendered, hidden)


def observation_ids(tokenizer: Any, ids: Sequence[int], new: Sequence[Message], **template: Any) -> list[int]:
    """Token ids that continue `ids`, which end with the policy's turn, by `new` and the next turn's header.

    Nothing of `ids` is rendered again, so that they stay what the policy saw and chose, also where a template
    would leave out earlier reasoning. `new` is rendered behind a short stand-in for the conversation.

    Raises:
        ChatTemplateError: there is no template, or it refuses or leaves out messages like these.
    """
    before: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN}]
    probes = [{**message, "content": f"{_NEW}{i}{_NEW}"} for i, message in enumerate(new)]
    probe, _ = _render(tokenizer, [*before, *probes], True, template)
    lost = [m["role"] for i, m in enumerate(new) if f"{_NEW}{i}{_NEW}" not in probe.partition(_TURN)[2]]
    if lost:
        raise ChatTemplateError(
            f"the chat template leaves out messages of the role {lost[0]!r} after the policy's turn: "
            "use one that renders them"
        )
    rendered, hidden = _render(tokenizer, [*before, *new], True, template)
    following = _encode(tokenizer, rendered.partition(_TURN)[2], hidden)
    special = set(tokenizer.all_special_ids)
    ended = bool(ids) and ids[-1] in special and bool(following) and following[0] in special
    return following[1:] if ended else following  # the policy ended its turn itself


def _render(
    tokenizer: Any, messages: Sequence[Message], add_generation_prompt: bool, template: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """The text, with numbered marks where messages hold special tokens, and what the marks stand for."""
    if not tokenizer.chat_template:
        raise ChatTemplateError("the tokenizer has no chat template: use a chat model, or prompts as strings")
    hidden: list[str] = []
    special = _special_tokens(tokenizer)

    def hide(found: re.Match[str]) -> str:
        hidden.append(found[0])
        return f"{_OPEN}{len(hidden) - 1}{_CLOSE}"

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return special.sub(hide, value) if special else value
        if isinstance(value, Mapping):
            return {k: v if k == "role" else plain(v) for k, v in value.items() if v is not None}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    try:
        rendered = tokenizer.apply_chat_template(
            [plain(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **template,
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        roles = [message.get("role") for message in messages]
        raise ChatTemplateError(
            f"the chat template refuses messages of the roles {roles}: {error}"
        ) from error
    return str(rendered), hidden


@lru_cache(maxsize=16)
def _special_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Matches the name of any control token, the longest first."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    names = sorted({*tokenizer.all_special_tokens, *added}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names))) if names else None


def _encode(tokenizer: Any, text: str, hidden: Sequence[str]) -> list[int]:
    ids: list[int] = []
    for i, piece in enumerate(_HIDDEN.split(text)):
        if i % 2 == 0:
            ids += tokenizer(piece, add_special_tokens=False)["input_ids"] if piece else []
            continue
        name = hidden[int(piece)]
        found = tokenizer(name, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if set(found) & set(tokenizer.all_special_ids):
            raise ChatTemplateError(f"a message holds {name!r}, which this tokenizer can't encode as text")
        ids += found
    return ids
