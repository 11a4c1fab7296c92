from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_models import engine_config, largest_difference, make_prompts, token_log_probs
from torch import Tensor
from transformers import PreTrainedModel

from rl_protocol import DataProto
from rl_rollout import (
    EngineStateError,
    FSDPVLLMShardingManager,
    RolloutConfigError,
    SamplingConfig,
    greedy_sampling,
    stream_weights,
    vLLMRollout,
)
from rl_rollout.weights.lora import (
    adapter_config,
    adapter_tensors,
    stream_base_weights,
    stream_merged_weights,
)

CPU = torch.device("cpu")
pytest.importorskip("vllm")


@pytest.fixture
def trained(engine_model: PreTrainedModel) -> PreTrainedModel:
    """The engine's model after one optimizer step large enough to show."""
    model = copy.deepcopy(engine_model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ids = make_prompts([40, 40]).batch["input_ids"][:, -40:]
    loss = model(ids, labels=ids, use_cache=False).loss
    torch.autograd.backward(loss)
    optimizer.step()
    return model


def test_a_pushed_engine_equals_one_started_from_disk_bit_for_bit(
    engine: vLLMRollout, trained: PreTrainedModel, prompts: DataProto, tmp_path: Path, tokenizer: Any
) -> None:
    trained.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    fresh = vLLMRollout(engine_config(), str(tmp_path), CPU)
    try:
        expected = fresh.generate_sequences(prompts)
    finally:
        fresh.close()
    engine.update_weights(iter(trained.named_parameters()))
    pushed = engine.generate_sequences(prompts)
    for key in ("responses", "rollout_log_probs"):
        assert torch.equal(pushed.batch[key], expected.batch[key])


def test_after_a_step_the_engine_agrees_with_the_trainer_and_forgets_cached_prefixes(
    engine: vLLMRollout, engine_model: PreTrainedModel, trained: PreTrainedModel
) -> None:
    prompts = make_prompts([40, 41, 48])  # longer than a block: the old weights' prefixes are cached
    before = engine.generate_sequences(prompts)
    moved = token_log_probs(trained, before) - token_log_probs(engine_model, before)
    assert moved.abs().max() > 1e-2
    with FSDPVLLMShardingManager(trained, engine):
        after = engine.generate_sequences(prompts)
    expected = token_log_probs(trained, after)
    assert largest_difference(after.batch["rollout_log_probs"], expected, after.batch["response_mask"]) < 1e-4


def test_generation_around_sleep_needs_new_weights(
    engine: vLLMRollout, trained: PreTrainedModel, prompts: DataProto
) -> None:
    engine.sleep()
    with pytest.raises(EngineStateError, match="asleep"):
        engine.generate_sequences(prompts)
    engine.wake("weights")
    engine.update_weights(iter(trained.named_parameters()))
    with pytest.raises(EngineStateError, match="asleep"):
        engine.generate_sequences(prompts)
    engine.wake("kv_cache")
    out = engine.generate_sequences(prompts)
    expected = token_log_probs(trained, out)
    assert largest_difference(out.batch["rollout_log_probs"], expected, out.batch["response_mask"]) < 1e-4
    engine.sleep()
    engine.wake()
    with pytest.raises(EngineStateError, match="no weights"):  # a GPU has thrown them away
        engine.generate_sequences(prompts)


def test_a_second_engine_starts_fast(engines: dict[str, vLLMRollout], models: dict[str, str]) -> None:
    started = time.process_time()  # wall time would measure the neighbours, who slow this down too
    engine = vLLMRollout(engine_config(), models["tied"], CPU)
    elapsed = time.process_time() - started
    engine.close()
    assert elapsed < 15.0  # a quiet machine needs .3 s, without the settings half a minute


@pytest.fixture(scope="module")
def adapted(reference: dict[str, PreTrainedModel]) -> PreTrainedModel:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
    model = peft.get_peft_model(copy.deepcopy(reference["untied"]), settings)
    randomise_adapter(model)
    return model


def randomise_adapter(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)


def test_adapters_agree_with_peft_and_a_new_version_replaces_the_old(
    adapted: PreTrainedModel, models: dict[str, str]
) -> None:
    config = engine_config(lora_rank=4, load_format="dummy", free_cache_engine=False)  # sleep clears caches
    engine = vLLMRollout(config, models["untied"], CPU)
    prompts = make_prompts([40, 41, 48])
    manager = FSDPVLLMShardingManager(adapted, engine)
    try:
        for _ in range(2):
            with manager:
                out = engine.generate_sequences(prompts)
            expected = token_log_probs(adapted, out)
            mask = out.batch["response_mask"]
            assert largest_difference(out.batch["rollout_log_probs"], expected, mask) < 1e-4
            randomise_adapter(adapted)
    finally:
        engine.close()


def test_an_engine_without_adapters_gets_them_merged(
    engines: dict[str, vLLMRollout], adapted: PreTrainedModel, prompts: DataProto
) -> None:
    engine = engines["untied"]
    base = {name: tensor.clone() for name, tensor in stream_base_weights(adapted, torch.float32, 1 << 20)}
    with FSDPVLLMShardingManager(adapted, engine):
        out = engine.generate_sequences(prompts)
    expected = token_log_probs(adapted, out)
    assert largest_difference(out.batch["rollout_log_probs"], expected, out.batch["response_mask"]) < 1e-4
    with pytest.raises(RolloutConfigError, match="lora_rank=0"):
        engine.load_adapter(adapter_tensors(adapted), adapter_config(adapted))
    engine.wake()
    engine.update_weights(iter(base.items()))


def test_merging_adds_the_scaled_product_and_leaves_the_rest(adapted: PreTrainedModel) -> None:
    base = dict(stream_base_weights(adapted, torch.float32, 1 << 20))
    merged = dict(stream_merged_weights(adapted, torch.float32, 1 << 20))
    assert base.keys() == merged.keys()
    changed = {name for name in base if not torch.equal(base[name], merged[name])}
    assert len(changed) == 6
    assert all(n.split(".")[-2] in ("q_proj", "v_proj", "down_proj") for n in changed)
    expected = dict(copy.deepcopy(adapted).merge_and_unload().named_parameters())
    assert all(torch.allclose(expected[name], merged[name], atol=1e-6) for name in merged)


def test_greedy_answers_change_with_the_weights(engine: vLLMRollout, trained: PreTrainedModel) -> None:
    prompts = make_prompts([40, 41, 48])
    prompts.meta_info["sampling"] = SamplingConfig(do_sample=False, ignore_eos=True)
    before = engine.generate_sequences(prompts).batch["responses"]
    engine.update_weights(iter(trained.named_parameters()))
    assert not torch.equal(before, engine.generate_sequences(prompts).batch["responses"])


def test_a_stream_may_use_its_memory_again_once_the_next_tensor_is_drawn(
    engine: vLLMRollout, trained: PreTrainedModel
) -> None:
    def reusing() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in stream_weights(trained, torch.float32):
            room = tensor.clone()
            yield name, room
            room.fill_(torch.nan)  # a layer's other tensors, still to come, must not find this

    rows = [[5, 6, 7], [8, 9]]
    sampling = [greedy_sampling()] * len(rows)
    engine.update_weights(stream_weights(trained, torch.float32))
    wanted = engine.complete(rows, sampling, [1, 2])
    engine.update_weights(reusing())
    assert engine.complete(rows, sampling, [1, 2]) == wanted
