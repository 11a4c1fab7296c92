from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from rollout_models import engine_config, make_prompts
from toy_engine import ToyRollout

from rl_protocol import DataProto
from rl_rollout import (
    AgentLoop,
    AgentRow,
    AsyncEngine,
    Calculator,
    HFRollout,
    PythonTool,
    RolloutConfigError,
    SamplingConfig,
    SingleTurnLoop,
    ToolLoop,
    Transcript,
    run_agent_loop,
    vLLMRollout,
)

CPU = torch.device("cpu")


def chat_prompts(tokenizer: Any, questions: list[str], width: int = 40) -> DataProto:
    """Left-padded renderings of one user message each, with the messages as `raw_prompt`."""
    messages = [[{"role": "user", "content": q}] for q in questions]
    prompts = make_prompts([width] * len(questions), width=width, raw_prompt=messages)
    for row, message in enumerate(messages):
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        prompts.batch["input_ids"][row] = torch.tensor([0] * (width - len(ids)) + ids)
        prompts.batch["attention_mask"][row] = torch.tensor([0] * (width - len(ids)) + [1] * len(ids))
    return prompts


def toy(tokenizer: Any, answers: list[str], response_length: int = 160) -> ToyRollout:
    config = engine_config(name="toy", prompt_length=200, response_length=response_length)
    return ToyRollout(config, [tokenizer.encode(a, add_special_tokens=False) for a in answers])


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call><eos>'


def test_tool_answers_are_appended_and_masked(tokenizer: Any) -> None:
    rollout = toy(tokenizer, [CALL, "It is 42<eos>"])
    out = run_agent_loop(rollout, ToolLoop(tokenizer, [Calculator()]), chat_prompts(tokenizer, ["6*7?"]))
    ids, mask = out.batch["responses"][0], out.batch["response_mask"][0].bool()
    length = int(out.batch["attention_mask"][0, 40:].sum())
    text = tokenizer.decode(ids[:length])
    assert text == CALL + "<bos>tool 42<eos><bos>assistant It is 42<eos>"
    assert tokenizer.decode(ids[mask]) == CALL + "It is 42<eos>"
    assert out.batch["rollout_log_probs"][0][mask].ne(0).all()
    assert out.batch["rollout_log_probs"][0][~mask].eq(0).all()
    assert out.non_tensor_batch["num_turns"].tolist() == [2]
    second_prompt = rollout.seen[1]
    assert (
        second_prompt == out.batch["input_ids"][0, 40 - len(rollout.seen[0]) :][: len(second_prompt)].tolist()
    )


def test_what_a_call_gets_wrong_is_told_to_the_policy(tokenizer: Any) -> None:
    wrong = [
        '<tool_call>{"name": "x", "arguments": {}}</tool_call><eos>',
        "<tool_call>{</tool_call><eos>",
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1/0"}}</tool_call><eos>',
        "done<eos>",
    ]
    rollout = toy(tokenizer, wrong, response_length=600)
    loop = ToolLoop(tokenizer, [Calculator()], max_turns=9)
    out = run_agent_loop(rollout, loop, chat_prompts(tokenizer, ["?"]))
    text = tokenizer.decode(out.batch["responses"][0])
    for part in ("error: no tool 'x'; there are calculator", "not a valid tool call", "can't evaluate '1/0'"):
        assert part in text
    assert out.non_tensor_batch["agent_error"].tolist() == [""]


def test_turns_and_room_are_limited(tokenizer: Any) -> None:
    rollout = toy(tokenizer, [CALL] * 9, response_length=600)
    loop = ToolLoop(tokenizer, [Calculator()], max_turns=3)
    out = run_agent_loop(rollout, loop, chat_prompts(tokenizer, ["?"]))
    assert out.non_tensor_batch["num_turns"].tolist() == [3]
    full = len(tokenizer.encode(CALL, add_special_tokens=False))
    out = run_agent_loop(toy(tokenizer, [CALL] * 9, full + 5), loop, chat_prompts(tokenizer, ["?"]))
    assert out.non_tensor_batch["finish_reason"].tolist() == ["length"]
    assert int(out.batch["response_mask"].sum()) == full  # an observation that leaves no room is not added


def test_a_template_that_leaves_tool_messages_out_costs_its_row(tokenizer: Any) -> None:
    deaf = copy.deepcopy(tokenizer)
    deaf.chat_template = tokenizer.chat_template.replace("%}", "if m.role != 'tool' %}", 1)
    rollout = toy(tokenizer, [CALL, "fine<eos>"])
    out = run_agent_loop(rollout, ToolLoop(deaf, [Calculator()]), chat_prompts(tokenizer, ["?"]))
    assert out.non_tensor_batch["agent_error"][0].startswith("ChatTemplateError: the chat template leaves")
    assert out.batch["response_mask"].sum() == 0
    assert out.batch["attention_mask"][0, 40:].sum() > 0
    assert out.meta_info["metrics"]["agent/failed_rows/sum"] == 1


class MixedLoop(AgentLoop):
    """Row 0 answers, row 1 raises, row 2 hangs."""

    async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
        transcript.add_generated(await engine.generate(transcript, row))
        if row.columns["kind"] == "raise":
            raise ZeroDivisionError("by a tool")
        if row.columns["kind"] == "hang":
            await asyncio.sleep(60)


def test_failed_and_hanging_rows_are_masked_and_counted(models: dict[str, str]) -> None:
    rollout = HFRollout(engine_config(), models["tied"], CPU)
    prompts = make_prompts([5, 9, 7], kind=["fine", "raise", "hang"])
    out = run_agent_loop(rollout, MixedLoop(), prompts, row_timeout_s=3)
    assert out.non_tensor_batch["finish_reason"].tolist()[1:] == ["error", "error"]
    assert (out.batch["response_mask"].sum(-1) > 0).tolist() == [True, False, False]
    errors = out.non_tensor_batch["agent_error"].tolist()
    assert errors[0] == "" and errors[1] == "ZeroDivisionError: by a tool" and "TimeoutError" in errors[2]
    assert out.meta_info["metrics"]["agent/failed_rows/sum"] == 2


def test_an_engine_that_fails_is_no_failure_of_a_row_and_spares_the_next_batch(tokenizer: Any) -> None:
    rollout = toy(tokenizer, ["a<eos>"])
    rollout.broken = True
    with pytest.raises(RuntimeError, match="the toy is broken"):
        run_agent_loop(rollout, SingleTurnLoop(), make_prompts([3, 4]))
    rollout.broken = False
    assert run_agent_loop(rollout, SingleTurnLoop(), make_prompts([3])).batch["response_mask"].sum() > 0


def test_one_turn_in_a_loop_is_generate_sequences(engine: vLLMRollout) -> None:
    prompts = make_prompts([3, 11, 40, 41, 0])
    looped = run_agent_loop(engine, SingleTurnLoop(), prompts)
    plain = engine.generate_sequences(prompts)
    for key in sorted(plain.batch.keys()):
        assert torch.equal(looped.batch[key], plain.batch[key]), key


def test_turns_go_on_where_the_row_stands(engine: vLLMRollout) -> None:
    class Twice(AgentLoop):
        async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
            for _ in range(2):
                transcript.add_generated(await engine.generate(transcript, row))
                transcript.add_observation([9, 10])

    prompts = make_prompts([3, 11])
    prompts.meta_info["sampling"] = SamplingConfig(do_sample=False, max_tokens=4, ignore_eos=True)
    out = run_agent_loop(engine, Twice(), prompts)
    assert out.meta_info["metrics"]["agent/num_turns/mean"] == 2
    assert out.batch["response_mask"][0].tolist() == [1] * 4 + [0] * 2 + [1] * 4 + [0] * 6
    again = make_prompts([9])
    again.batch["input_ids"][0, -9:] = out.batch["input_ids"][0, 45:54]
    again.meta_info["sampling"] = prompts.meta_info["sampling"]
    expected = engine.generate_sequences(again).batch["responses"][0, :4]
    assert torch.equal(out.batch["responses"][0, 6:10], expected)


def test_engines_of_several_ranks_are_refused(tokenizer: Any) -> None:
    rollout = toy(tokenizer, ["a"])
    rollout.config.tensor_model_parallel_size = 2
    with pytest.raises(RolloutConfigError, match="an engine of one rank"):
        run_agent_loop(rollout, SingleTurnLoop(), make_prompts([3]))


def test_python_runs_between_turns(tokenizer: Any) -> None:
    call = '<tool_call>{"name": "python", "arguments": {"code": "print(2**10)"}}</tool_call><eos>'
    rollout = toy(tokenizer, [call, "1024<eos>"])
    out = run_agent_loop(rollout, ToolLoop(tokenizer, [PythonTool()]), chat_prompts(tokenizer, ["?"]))
    assert "<bos>tool 1024\n<eos>" in tokenizer.decode(out.batch["responses"][0])
