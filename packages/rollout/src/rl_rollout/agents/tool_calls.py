"""Tool calls in the notations that model families are taught."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_HERMES = re.compile(r"<tool_call>\s*(.*?)\s*(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")
_JSON = json.JSONDecoder()


@dataclass(frozen=True)
class ToolCall:
    """One call the policy wrote. `error` says what is wrong with it, "" if nothing."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def parse_tool_calls(text: str, notation: str = "hermes") -> list[ToolCall]:
    """The calls in a response, in order; one that can't be understood carries its error.

    Notations:
        hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen 2.5 and 3); its body may
            be a list of calls, or in the XML of Qwen3-Coder, whose values are taken as text.
        llama3: the response is `{"name": …, "parameters": {…}}`, or several with `;` between, perhaps behind
            `<|python_tag|>`.
        mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}`.
        pythonic: the response is `[name(key=value), …]` (Llama 3.2 and 4).

    In all of them arguments may be called `parameters`, and may be a JSON object inside a string.

    Raises:
        KeyError: no such notation.
    """
    return list(NOTATIONS[notation](text))


def notation_of(chat_template: str | None) -> str:
    """The notation that a chat template teaches."""
    template = chat_template or ""
    marks = {"<tool_call>": "hermes", "[TOOL_CALLS]": "mistral", "<|python_tag|>": "llama3"}
    marks |= {"<|python_start|>": "pythonic", '"parameters": dictionary': "llama3"}
    return next((notation for mark, notation in marks.items() if mark in template), "hermes")


def _hermes(text: str) -> Iterator[ToolCall]:
    for body, end in _HERMES.findall(text):
        if body.startswith("<function="):
            for name, parameters in _FUNCTION.findall(body):
                yield ToolCall(name, dict(_PARAMETER.findall(parameters)))
        else:
            yield from _json_calls(body, strict=bool(end))


def _llama3(text: str) -> Iterator[ToolCall]:
    before, tagged, body = text.rpartition("<|python_tag|>")
    body = (body if tagged else before or text).strip()
    if tagged or (body.startswith("{") and '"name"' in body):
        yield from _json_calls(body, strict=True)


def _mistral(text: str) -> Iterator[ToolCall]:
    for body in text.split("[TOOL_CALLS]")[1:]:
        named = _NAMED.match(body)
        if named is None:
            yield from _json_calls(body.strip(), strict=False)
            continue
        try:
            arguments, _ = _JSON.raw_decode(body, named.end())
        except ValueError as error:
            yield _refused(error)
        else:
            yield ToolCall(named[1], arguments)


def _pythonic(text: str) -> Iterator[ToolCall]:
    body = re.sub(r"<\|python_(?:tag|start|end)\|>", "", text).strip()
    try:
        found = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    items = found.elts if isinstance(found, ast.List) else []
    for item in items if all(isinstance(item, ast.Call) for item in items) else []:
        yield _python_call(item)


def _python_call(item: Any) -> ToolCall:
    name = ast.unparse(item.func)
    if item.args or not all(keyword.arg for keyword in item.keywords):
        return ToolCall(name, {}, "no arguments understood: write each as name=value")
    try:
        return ToolCall(name, {k.arg: ast.literal_eval(k.value) for k in item.keywords})
    except (ValueError, TypeError, RecursionError) as error:
        return ToolCall(name, {}, f"no arguments understood: {error}")


def _json_calls(body: str, strict: bool) -> Iterator[ToolCall]:
    """Calls in JSON, one after the other; what follows them is an error if `strict`."""
    place, first = 0, True
    while place < len(body):
        try:
            value, place = _JSON.raw_decode(body, place)
        except (ValueError, RecursionError) as error:
            if first or strict:
                yield _refused(error)
            return
        for call in value if isinstance(value, list) else [value]:
            yield _json_call(call)
        first = False
        place += len(body[place:]) - len(body[place:].lstrip("; \t\r\n"))
    if first:
        yield _refused(ValueError("it is empty"))


def _json_call(call: Any) -> ToolCall:
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        return _refused(ValueError("write an object with name and arguments"))
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        return ToolCall(inner["name"], {}, "no arguments understood: give them as an object, {} for none")
    return ToolCall(inner["name"], arguments)


def _refused(error: Exception) -> ToolCall:
    return ToolCall("", {}, f"not a valid tool call: {error}")


NOTATIONS: dict[str, Callable[[str], Iterator[ToolCall]]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "pythonic": _pythonic,
}
