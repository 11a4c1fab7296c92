"""An agent loop with a calculator: what the policy writes before `=` is evaluated for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rl_rollout import AgentLoop, AgentRow, AsyncEngine, Calculator, RolloutConfig, ToolError, Transcript


class CalculatorLoop(AgentLoop):
    """`3*4=` asks; `12;` comes back and is not trained on; a turn that asks nothing is the last."""

    def __init__(self, tokenizer: Any, max_turns: int) -> None:
        self.tokenizer, self.max_turns, self.calculator = tokenizer, max_turns, Calculator()

    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        """See `AgentLoop.run`."""
        row = replace(row, sampling=replace(row.sampling, stop=["="]))
        while True:
            completion = await engine.generate(transcript, row)
            transcript.add_generated(completion)
            text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            if not text.endswith("=") or transcript.turns >= self.max_turns:
                return
            result = self.tokenizer.encode(await self.evaluate(text[:-1]), add_special_tokens=False)
            if not transcript.add_observation(result):
                return

    async def evaluate(self, expression: str) -> str:
        """What the calculator says, or `?` where the expression is none."""
        try:
            return f"{await self.calculator.call({'expression': expression})};"
        except ToolError:
            return "?;"


def make_loop(config: RolloutConfig, tokenizer: Any) -> AgentLoop:
    """What `actor_rollout_ref.rollout.agent_loop` names."""
    return CalculatorLoop(tokenizer, config.max_turns)
