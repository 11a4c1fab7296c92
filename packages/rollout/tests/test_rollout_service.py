from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rollout_models import RESPONSE, engine_config, make_prompts
from torch import Tensor
from transformers import PreTrainedModel

from rl_rollout import (
    AgentLoop,
    AgentRow,
    AsyncEngine,
    BaseRollout,
    Completion,
    HFRollout,
    RolloutConfigError,
    RolloutDataError,
    RolloutService,
    SamplingConfig,
    Transcript,
    run_agent_rows,
)

SAMPLING = SamplingConfig(ignore_eos=True)
PROMPTS = [[7, 8, 9 + i] for i in range(6)]


@pytest.fixture(params=["hf", "vllm"])
def rollout(
    request: pytest.FixtureRequest, models: dict[str, str], reference: dict[str, PreTrainedModel]
) -> Iterator[BaseRollout]:
    if request.param == "hf":
        yield HFRollout(engine_config(), models["tied"], torch.device("cpu"))
        return
    engine = request.getfixturevalue("engines")["tied"]
    yield engine
    engine.update_weights(iter(reference["tied"].named_parameters()))


@pytest.fixture
def model(reference: dict[str, PreTrainedModel]) -> PreTrainedModel:
    return copy.deepcopy(reference["tied"])


def weights(model: PreTrainedModel, scale: float = 1.0) -> Iterator[tuple[str, Tensor]]:
    """The model's parameters, each multiplied."""
    yield from ((name, p.detach() * scale) for name, p in model.named_parameters())


def log_probs(model: PreTrainedModel, prompt: list[int], row: Completion) -> Tensor:
    ids = torch.tensor([prompt + row.token_ids])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logits.gather(1, ids[0, len(prompt) :, None])[:, 0].detach()


async def start(service: RolloutService) -> list[asyncio.Task[Completion]]:
    """Six rows, after a few steps."""
    asks = [service.generate(ids, SAMPLING, i, request_id=str(i)) for i, ids in enumerate(PROMPTS)]
    tasks = [asyncio.create_task(ask) for ask in asks]
    for _ in range(8):
        await asyncio.sleep(0)
    return tasks


def test_rows_are_those_of_a_batch(rollout: BaseRollout) -> None:
    prompts = make_prompts([3, 11, 40, 41, 0])
    plain = rollout.generate_sequences(prompts)
    service = RolloutService(rollout)
    service.version = 3
    out = asyncio.run(service.generate_sequences(prompts))
    for key in sorted(plain.batch.keys()):
        assert torch.equal(out.batch[key], plain.batch[key]), key
    assert out.batch["oldest_version"].tolist() == [3] * 5
    assert out.batch["token_versions"].eq(3).equal(out.batch["response_mask"].bool())
    assert out.meta_info["logprob_space"] == plain.meta_info["logprob_space"]
    assert "token_versions" not in set(plain.batch.keys())


def test_each_token_is_explained_by_the_weights_it_is_said_to_come_from(
    rollout: BaseRollout, model: PreTrainedModel
) -> None:
    async def run(service: RolloutService) -> list[Completion]:
        service.update_weights(4, weights(model))
        tasks = await start(service)
        service.update_weights(5, weights(model, 1.5))
        return await asyncio.gather(*tasks)

    service = RolloutService(rollout)
    rows = asyncio.run(run(service))
    assert service.metrics()["service/cut_rows/sum"] > 0
    before = [log_probs(model, ids, row) for ids, row in zip(PROMPTS, rows, strict=True)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = [log_probs(model, ids, row) for ids, row in zip(PROMPTS, rows, strict=True)]
    for old, new, row in zip(before, after, rows, strict=True):
        versions = torch.tensor(row.versions)
        assert len(row.token_ids) == len(row.versions) == RESPONSE
        assert row.finish_reason == "length"
        expected = torch.where(versions == 4, old, new)
        assert torch.allclose(torch.tensor(row.log_probs), expected, atol=1e-4)
    assert {version for row in rows for version in row.versions} == {4, 5}


def test_a_pause_that_keeps_rows_changes_none(rollout: BaseRollout) -> None:
    async def run(pause: bool) -> list[Completion]:
        service = RolloutService(rollout)
        tasks = await start(service)
        if pause:
            await service.pause("keep")
            late = asyncio.create_task(service.generate(PROMPTS[0], SAMPLING, 0))
            drawn = service.metrics()
            await asyncio.sleep(0.05)
            assert service.metrics() == drawn and not late.done()
            service.resume()
            assert (await late).token_ids == (await tasks[0]).token_ids
        return await asyncio.gather(*tasks)

    assert asyncio.run(run(pause=True)) == asyncio.run(run(pause=False))


def test_a_pause_waits_for_rows_or_ends_them(rollout: BaseRollout) -> None:
    async def run(mode: Any) -> list[Completion]:
        service = RolloutService(rollout)
        tasks = await start(service)
        await service.pause(mode)
        assert service.metrics()["service/rows"] == 0
        return await asyncio.gather(*tasks)

    whole = asyncio.run(run("wait"))
    assert [len(row.token_ids) for row in whole] == [RESPONSE] * 6
    ended = asyncio.run(run("abort"))
    assert {row.finish_reason for row in ended} == {"abort"}
    for row, long in zip(ended, whole, strict=True):
        assert len(row.token_ids) < RESPONSE
        assert row.token_ids == long.token_ids[: len(row.token_ids)]
    with pytest.raises(RolloutDataError, match="mode='stop': must be one of keep, wait, abort"):
        asyncio.run(run("stop"))


def test_one_row_is_ended_and_another_cancelled(rollout: BaseRollout) -> None:
    async def run() -> tuple[list[Any], dict[str, float]]:
        service = RolloutService(rollout)
        tasks = await start(service)
        assert service.abort(["1", "no such row"]) == 1
        tasks[2].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True), service.metrics()

    rows, metrics = asyncio.run(run())
    assert rows[1].finish_reason == "abort" and len(rows[1].token_ids) < RESPONSE
    assert isinstance(rows[2], asyncio.CancelledError)
    assert {row.finish_reason for row in rows[3:] + rows[:1]} == {"length"}
    assert metrics["service/rows"] == metrics["service/outstanding_tokens"] == 0


def test_agent_rows_take_new_weights_between_turns(rollout: BaseRollout, model: PreTrainedModel) -> None:
    service = RolloutService(rollout)

    class Twice(AgentLoop):
        async def run(self, transcript: Transcript, row: AgentRow, engine: AsyncEngine) -> None:
            transcript.add_generated(await engine.generate(transcript, row))
            transcript.add_observation([9, 10])
            engine.service.update_weights(engine.service.version + 1, weights(model))
            transcript.add_generated(await engine.generate(transcript, row))

    prompts = make_prompts([3])
    prompts.meta_info["sampling"] = SamplingConfig(max_tokens=4, ignore_eos=True)
    service.update_weights(0, weights(model))
    out = asyncio.run(run_agent_rows(service, Twice(), prompts))
    assert out.batch["token_versions"].tolist() == [[0] * 4 + [-1] * 2 + [1] * 4 + [-1] * 6]
    assert out.batch["oldest_version"].tolist() == [0]


def test_what_cannot_be_served_is_refused_or_told(models: dict[str, str], model: PreTrainedModel) -> None:
    engine = HFRollout(engine_config(), models["tied"], torch.device("cpu"))
    service = RolloutService(engine)
    service.update_weights(2, weights(model))
    with pytest.raises(RolloutDataError, match="version=1: must be at least 2"):
        service.update_weights(1, weights(model))

    async def broken(row: list[int]) -> Completion:
        task = asyncio.create_task(service.generate(row, SAMPLING, 0))
        await asyncio.sleep(0)
        engine.step = None  # type: ignore[assignment,method-assign]
        return await task

    with pytest.raises(TypeError):
        asyncio.run(broken([5, 6]))
    assert service.metrics()["service/rows"] == 0
    assert asyncio.run(service.generate([], SAMPLING, 0)).finish_reason == "empty"
    engine.config.tensor_model_parallel_size = 2
    with pytest.raises(RolloutConfigError, match="need an engine of one rank"):
        RolloutService(engine)
