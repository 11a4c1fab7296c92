"""What the ranks of multi-process tests do: `python rank_jobs.py JOB FOLDER SETTINGS`."""

from __future__ import annotations

import json
import os
import signal
import sys
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import rollout_models

rollout_models.set_engine_environment()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rollout_models import engine_config, largest_difference, make_prompts, token_log_probs  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from rl_rollout import FSDPVLLMShardingManager, WeightSender, build_rollout, stream_weights  # noqa: E402
from rl_rollout.weights.host_memory import HostRoom  # noqa: E402
from rl_rollout.weights.sync import gather_named, named_weights  # noqa: E402


def sharded_model(path: str) -> Any:
    """The checkpoint in float32, sharded by FSDP2 over all ranks."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class OddModule(nn.Module):
    """Shapes that don't divide by the number of ranks, a scalar and an integer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Parameter(torch.randn(5, 3))
        self.b = nn.Parameter(torch.randn(1))
        self.c = nn.Parameter(torch.randn(4, 2, 2))
        self.d = nn.Parameter(torch.arange(7), requires_grad=False)


def stream(folder: Path, path: str) -> Any:
    """Streams equal the unsharded weights whatever the bucket, in shared memory too; rows are gathered and
    cut again."""
    equal, room = [], HostRoom()
    for bucket in (1, 64, 1 << 20):
        for dtype in (torch.float32, torch.bfloat16):
            plain, module = dict(OddModule().named_parameters()), OddModule()
            fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            kept = dict(stream_weights(module, dtype, bucket))  # kept tensors stay valid
            wanted = {n: p.to(dtype) if p.is_floating_point() else p for n, p in plain.items()}
            shared = gather_named(named_weights(module), dtype, bucket, room)
            for found in (kept, {name: tensor.clone() for name, tensor in shared}):
                same = all(torch.equal(found[n], wanted[n]) for n in wanted)
                equal.append(list(found) == list(wanted) and same)
    model = sharded_model(path)
    rollout = build_rollout(engine_config(name="hf", load_format="dummy"), path)
    manager = FSDPVLLMShardingManager(model, rollout, tp_group=dist.group.WORLD)
    rank = dist.get_rank()
    prompts = make_prompts([5, 9, 20][: 3 - rank], seed=rank)
    with manager:
        gathered = manager.preprocess_data(prompts)
        own = manager.postprocess_data(rollout.generate_sequences(gathered))
    difference = largest_difference(
        own.batch["rollout_log_probs"], token_log_probs(model, own), own.batch["response_mask"]
    )
    own_rows = torch.equal(own.batch["prompts"], prompts.batch["input_ids"])
    shared = all(turns is not None for turns in room._turns.values()) and bool(room._turns)
    return {"equal": equal, "shared": shared} | {
        "gathered": len(gathered),
        "own": own_rows,
        "difference": difference,
    }


def on_policy(folder: Path, path: str, sizes: list[int], steps: int, die: bool = False) -> Any:
    """Generate, compare, train, push, again, with an engine of each tensor-parallel size in turn;
    optionally end as a killed job does."""
    model = sharded_model(path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    reports = []
    for tp in sizes:
        config = engine_config(name="vllm", load_format="dummy", tensor_model_parallel_size=tp)
        rollout = build_rollout(config, path)
        manager = FSDPVLLMShardingManager(model, rollout)
        prompts = make_prompts([40, 41, 5, 33], seed=dist.get_rank() // tp)
        prompts.pop(batch_keys=["seeds"])  # derived seeds must be the same on the ranks of a group
        report: dict[str, Any] = {"differences": [], "tokens": []}
        for _ in range(steps):
            with manager:
                out = rollout.generate_sequences(prompts)
            log_probs, mask = token_log_probs(model, out), out.batch["response_mask"]
            report["differences"].append(largest_difference(out.batch["rollout_log_probs"], log_probs, mask))
            report["tokens"].append(out.batch["responses"].tolist())
            torch.autograd.backward(-log_probs[mask.bool()].mean())
            optimizer.step()
            optimizer.zero_grad()
        reports.append(report)
        if die:
            sys.stdout.write(json.dumps(reports) + "\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        rollout.close()
        dist.barrier()  # closing an engine must leave the trainer's group alone
    return reports


def send(folder: Path, path: str, address: str, bucket: int) -> Any:
    """Train a step and send the weights to an engine in the test's process."""
    from rl_rollout.engines.vllm.shm import ShmTrainerInitInfo

    model = sharded_model(path)
    rank = dist.get_rank()
    connection = Client(address, authkey=b"weights") if rank == 0 else None

    def call(step: str, payload: dict[str, Any]) -> None:
        assert connection is not None
        connection.send((step, payload))
        connection.recv()

    sender = WeightSender(
        model, ShmTrainerInitInfo(rank=rank, bucket_bytes=bucket), call, torch.float32, bucket
    )
    for scale in (2.0, 0.5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        sender.send()
    sender.close()
    if connection is not None:
        connection.send(("bye", {}))
    return {}


def main() -> None:
    job, folder, settings = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = globals()[job](Path(folder), **json.loads(settings))
    dist.barrier()  # gloo may abort a rank that leaves while another still talks
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
