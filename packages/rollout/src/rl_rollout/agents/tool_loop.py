"""A multi-turn loop in which the policy may call tools between its turns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_rollout.agents.loop import AgentLoop, AgentRow, AsyncEngine, Transcript
from rl_rollout.agents.tools import Tool, ToolError
from rl_rollout.errors import ChatHistoryRewrittenError, RolloutDataError

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """One call the policy wrote. `error` says what is wrong with it, "" if nothing."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def parse_tool_calls(text: str) -> list[ToolCall]:
    """Calls in the Hermes notation: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    calls = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
            calls.append(ToolCall(str(call["name"]), dict(call.get("arguments", {}))))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            calls.append(ToolCall("", {}, f"not a valid tool call: {error}"))
    return calls


class ToolLoop(AgentLoop):
    """Generate, run the tools asked for, append what they say, until an answer asks for none.

    Needs the column `raw_prompt`, the row's messages, of which `input_ids` is the rendering. A call that
    goes wrong is told to the policy as the tool's answer.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[Tool], max_turns: int = 4) -> None:
        self._tokenizer = tokenizer
        self._tools = {tool.name: tool for tool in tools}
        self._max_turns = max_turns

    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        """See `AgentLoop.run`. Raises ChatHistoryRewrittenError; see `observation_ids`."""
        if "raw_prompt" not in row.columns:
            raise RolloutDataError("tool loops need the column raw_prompt: the messages of each row")
        messages = [dict(message) for message in row.columns["raw_prompt"]]
        while True:
            completion = await engine.generate(transcript, row)
            transcript.add_generated(completion)
            text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            calls = parse_tool_calls(text)
            if completion.finish_reason != "stop" or not calls or transcript.turns >= self._max_turns:
                return
            answers = [{"role": "tool", "content": await self._answer(call)} for call in calls]
            messages.append({"role": "assistant", "content": text})
            ids = observation_ids(self._tokenizer, transcript.ids, messages, answers)
            messages += answers
            if not transcript.add_observation(ids):
                return

    async def _answer(self, call: ToolCall) -> str:
        if call.error:
            return f"error: {call.error}"
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: no tool {call.name!r}; there are {', '.join(sorted(self._tools))}"
        try:
            return await tool.call(call.arguments)
        except ToolError as error:
            return f"error: {error}"


def observation_ids(
    tokenizer: Any, ids: list[int], history: list[dict[str, Any]], new: list[dict[str, Any]]
) -> list[int]:
    """Token ids that continue `ids`, the tokens of `history`, by the messages `new` and the header of the
    policy's next turn.

    Only what is new is encoded: `ids` stay what the policy saw and chose. That is right only while the
    template renders history as it stands in `ids`; one that rewrites it (drops earlier reasoning, trims)
    raises ChatHistoryRewrittenError.
    """
    seen = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    rendered = tokenizer.apply_chat_template(history + new, add_generation_prompt=True, tokenize=False)
    if not rendered.startswith(seen):
        same = next((i for i, c in enumerate(seen) if rendered[i : i + 1] != c), len(seen))
        raise ChatHistoryRewrittenError(
            f"the chat template rewrites earlier turns: the policy saw {seen[same : same + 40]!r} where it "
            f"now has {rendered[same : same + 40]!r}; use a template that keeps history as it was"
        )
    return list(tokenizer.encode(rendered[len(seen) :], add_special_tokens=False))
