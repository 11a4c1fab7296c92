from __future__ import annotations

import copy
from multiprocessing.connection import Listener
from pathlib import Path

import pytest
import torch
from ranks import finish_ranks, start_ranks
from rollout_models import largest_difference, token_log_probs
from transformers import PreTrainedModel

from rl_protocol import DataProto
from rl_rollout import RolloutDataError, vLLMRollout
from rl_rollout.engines.vllm.transfer import register_shm_backend

pytest.importorskip("vllm")


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("bucket", [1 << 17])
def test_two_trainer_processes_push_to_an_engine_in_a_third(
    engines: dict[str, vLLMRollout],
    reference: dict[str, PreTrainedModel],
    models: dict[str, str],
    tmp_path: Path,
    prompts: DataProto,
    name: str,
    bucket: int,
) -> None:
    engine, scaled = engines[name], copy.deepcopy(reference[name])
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(2.0)
    expected = {2.0: scaled, 1.0: reference[name]}
    address, pieces, finished = str(tmp_path / "socket"), 0, []
    with Listener(address, authkey=b"weights") as listener:
        ranks = start_ranks("send", tmp_path, path=models[name], address=address, bucket=bucket)
        with listener.accept() as connection:
            while (message := connection.recv())[0] != "bye":
                engine.weight_sync(*message)
                pieces += message[0] == "update"
                if message[0] == "finish":
                    out = engine.generate_sequences(prompts)
                    model = expected[2.0 if not finished else 1.0]
                    finished.append(
                        largest_difference(
                            out.batch["rollout_log_probs"],
                            token_log_probs(model, out),
                            out.batch["response_mask"],
                        )
                    )
                connection.send("done")
        finish_ranks(ranks)
    assert len(finished) == 2
    assert max(finished) < 1e-4
    assert pieces > 4  # the model doesn't fit the buffer: it came in pieces
    assert not list(Path("/dev/shm").glob("rlrollout-weights-*"))


def test_an_unknown_step_is_refused(engines: dict[str, vLLMRollout]) -> None:
    with pytest.raises(RolloutDataError, match="'begin'"):
        engines["tied"].weight_sync("begin", {})


def test_registering_twice_is_fine() -> None:
    register_shm_backend()
    register_shm_backend()
