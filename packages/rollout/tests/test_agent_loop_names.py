"""An agent loop is chosen by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_rollout import RolloutConfig, RolloutConfigError, SingleTurnLoop, ToolLoop, build_agent_loop


def single(config: RolloutConfig, tokenizer: object) -> SingleTurnLoop:
    return SingleTurnLoop()


def test_by_name_and_by_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_agent_loop(RolloutConfig(), None) is None
    assert isinstance(build_agent_loop(RolloutConfig(agent_loop="tool"), None), ToolLoop)
    monkeypatch.setattr("rl_rollout.agents.by_name.single", single, raising=False)
    chosen = build_agent_loop(RolloutConfig(agent_loop="rl_rollout.agents.by_name:single"), None)
    assert isinstance(chosen, SingleTurnLoop)


def test_by_file(tmp_path: Path) -> None:
    file = tmp_path / "my_loop.py"
    file.write_text(
        "from rl_rollout import SingleTurnLoop\n"
        "class Mine(SingleTurnLoop):\n"
        "    def __init__(self, config, tokenizer): self.seen = config.max_turns, tokenizer\n"
    )
    loop = build_agent_loop(RolloutConfig(agent_loop=f"{file}:Mine", max_turns=7), "tokenizer")
    assert isinstance(loop, SingleTurnLoop) and loop.seen == (7, "tokenizer")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        "tools",
        "no.such.module:f",
        "rl_rollout:nothing",
        "no/such.py:f",
        pytest.param(f"{__file__}:nothing", id="file"),
    ],
)
def test_a_name_that_leads_nowhere_is_an_error(name: str) -> None:
    with pytest.raises(RolloutConfigError, match="write 'tool'"):
        build_agent_loop(RolloutConfig(agent_loop=name), None)
