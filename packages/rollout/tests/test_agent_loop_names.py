"""An agent loop is chosen by name."""

from __future__ import annotations

import pytest

from rl_rollout import RolloutConfig, RolloutConfigError, SingleTurnLoop, ToolLoop, build_agent_loop


def single(config: RolloutConfig, tokenizer: object) -> SingleTurnLoop:
    return SingleTurnLoop()


def test_by_name_and_by_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_agent_loop(RolloutConfig(), None) is None
    assert isinstance(build_agent_loop(RolloutConfig(agent_loop="tool"), None), ToolLoop)
    monkeypatch.setattr("rl_rollout.agent_loops.single", single, raising=False)
    chosen = build_agent_loop(RolloutConfig(agent_loop="rl_rollout.agent_loops:single"), None)
    assert isinstance(chosen, SingleTurnLoop)


@pytest.mark.parametrize("name", ["tools", "no.such.module:f", "rl_rollout:nothing"])
def test_a_name_that_leads_nowhere_is_an_error(name: str) -> None:
    with pytest.raises(RolloutConfigError, match="write 'tool'"):
        build_agent_loop(RolloutConfig(agent_loop=name), None)
