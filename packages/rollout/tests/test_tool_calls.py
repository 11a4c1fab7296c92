"""Calls are read as the model families write them; what can't be understood is never a call with nothing."""

from __future__ import annotations

import pytest

from rl_rollout import parse_tool_calls
from rl_rollout.agents.tool_calls import notation_of

ADD = ("add", {"a": 1, "b": "x"})
OBJECT = '{"name": "add", "arguments": {"a": 1, "b": "x"}}'
PARAMETERS = '{"name": "add", "parameters": {"a": 1, "b": "x"}}'
AS_STRING = r'{"name": "add", "arguments": "{\"a\": 1, \"b\": \"x\"}"}'
OPENAI = '{"type": "function", "function": ' + AS_STRING + "}"


@pytest.mark.parametrize(
    ("notation", "text", "count"),
    [
        ("hermes", f"<tool_call>{OBJECT}</tool_call>", 1),
        ("hermes", f"I think.\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>{PARAMETERS}</tool_call>", 2),
        ("hermes", f"<tool_call>{AS_STRING}</tool_call>", 1),
        ("hermes", f"<tool_call>{OPENAI}</tool_call>", 1),
        ("hermes", f"<tool_call>[{OBJECT}, {AS_STRING}]</tool_call>", 2),
        ("hermes", f"<tool_call>{OBJECT}\n{PARAMETERS}</tool_call>", 2),
        ("hermes", f"<tool_call>\n{OBJECT}", 1),
        ("hermes", f"<tool_call>{OBJECT}\n<tool_call>{OBJECT}</tool_call>", 2),
        ("llama3", PARAMETERS, 1),
        ("llama3", f"<|python_tag|>{PARAMETERS}; {OBJECT}", 2),
        ("llama3", f"\n{OPENAI}\n", 1),
        ("mistral", f"[TOOL_CALLS] [{OBJECT}, {AS_STRING}]", 2),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": "x"}[TOOL_CALLS]add{"a": 1, "b": "x"}', 2),
        ("mistral", f"Well. [TOOL_CALLS]{OBJECT}", 1),
        ("pythonic", "[add(a=1, b='x')]", 1),
        ("pythonic", "<|python_start|>[add(a=1, b='x'), add(b='x', a=1)]<|python_end|>", 2),
        ("pythonic", "\n[add(\n  a=1,\n  b='x')]", 1),
    ],
)
def test_a_call_is_read(notation: str, text: str, count: int) -> None:
    calls = parse_tool_calls(text, notation)
    assert [(call.name, call.arguments, call.error) for call in calls] == [(*ADD, "")] * count


def test_values_of_the_xml_notation_are_text() -> None:
    code = "print(1)\nprint('<a>')"
    parameters = f"<parameter=code>\n{code}\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
    text = f"<tool_call>\n<function=run>\n{parameters}"
    for end in ("</function>\n</tool_call>", "", "</function>"):
        (call,) = parse_tool_calls(text + end)
        assert (call.name, call.arguments) == ("run", {"code": code, "n": "5"})


@pytest.mark.parametrize(
    ("notation", "text", "why"),
    [
        ("hermes", '<tool_call>{"name": "add"}</tool_call>', "no arguments understood"),
        ("hermes", '<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>', "no arguments understood"),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "no arguments understood"),
        ("hermes", '<tool_call>{"name": "add", "arguments": null}</tool_call>', "no arguments understood"),
        ("hermes", '<tool_call>{"name": "add"', "not a valid tool call"),
        ("hermes", "<tool_call></tool_call>", "not a valid tool call"),
        ("hermes", '<tool_call>"add"</tool_call>', "not a valid tool call"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "not a valid tool call"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "not a valid tool call"),
        ("llama3", "<|python_tag|>print(1)", "not a valid tool call"),
        ("llama3", '{"name": "add"}', "no arguments understood"),
        ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1', "not a valid tool call"),
        ("pythonic", "[add(1, 'x')]", "no arguments understood"),
        ("pythonic", "[add(a=b)]", "no arguments understood"),
        ("pythonic", "[add(**x)]", "no arguments understood"),
    ],
)
def test_what_is_not_understood_is_said(notation: str, text: str, why: str) -> None:
    (call,) = parse_tool_calls(text, notation)
    assert why in call.error and call.arguments == {}


@pytest.mark.parametrize("notation", ["hermes", "llama3", "mistral", "pythonic"])
@pytest.mark.parametrize("text", ["", "It is 42.", "[1, 2]", '{"answer": 42}', "[]", "f(x)", "(" * 500])
def test_an_answer_is_no_call(notation: str, text: str) -> None:
    assert parse_tool_calls(text, notation) == []


@pytest.mark.parametrize(
    ("template", "notation"),
    [
        ('… <tool_call>\n{"name": …}', "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ('{{ "<|python_tag|>" }}', "llama3"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3"),
        ("<|python_start|>", "pythonic"),
        (None, "hermes"),
    ],
)
def test_the_template_says_which_notation_it_teaches(template: str | None, notation: str) -> None:
    assert notation_of(template) == notation
