"""A multi-turn loop in which the policy may call tools between its turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_rollout.agents.loop import AgentLoop, AgentRow, AsyncEngine, Transcript
from rl_rollout.agents.tool_calls import NOTATIONS, ToolCall, notation_of, parse_tool_calls
from rl_rollout.agents.tools import Tool, ToolError
from rl_rollout.chat import observation_ids
from rl_rollout.errors import RolloutConfigError


class ToolLoop(AgentLoop):
    """Generate, run the tools asked for, append what they say, until an answer asks for none.

    A call that goes wrong is told to the policy as the tool's answer.

    Args:
        tokenizer: of the policy, with a chat template.
        tools: what may be called.
        max_turns: turns of the policy at most.
        notation: how calls are written, see `parse_tool_calls`; "auto": as the chat template teaches.
    """

    def __init__(
        self, tokenizer: Any, tools: Sequence[Tool], max_turns: int = 4, notation: str = "auto"
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = {tool.name: tool for tool in tools}
        self._max_turns = max_turns
        taught = getattr(tokenizer, "chat_template", None)
        self._notation = notation_of(taught) if notation == "auto" else notation
        if self._notation not in NOTATIONS:
            raise RolloutConfigError(f"notation={notation!r}: choose auto, {', '.join(NOTATIONS)}")

    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        """See `AgentLoop.run`. Raises ChatTemplateError; see `observation_ids`."""
        while True:
            completion = await engine.generate(transcript, row)
            transcript.add_generated(completion)
            calls = parse_tool_calls(self._text(completion.token_ids), self._notation)
            if completion.finish_reason != "stop" or not calls or transcript.turns >= self._max_turns:
                return
            answers = [{"role": "tool", "content": await self._answer(call)} for call in calls]
            ids = observation_ids(self._tokenizer, transcript.ids, answers)
            if not transcript.add_observation(ids):
                return

    def _text(self, ids: Sequence[int]) -> str:
        """A turn with the control tokens that open calls, without those that end it."""
        special, kept = set(self._tokenizer.all_special_ids), list(ids)
        while kept and kept[-1] in special:
            kept.pop()
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))

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
