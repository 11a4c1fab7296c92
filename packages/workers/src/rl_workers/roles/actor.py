"""The worker that plays actor, rollout and reference policy: alone, or in one process."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from rl_controller import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from rl_protocol import DataProto
from rl_rollout import (
    AgentLoop,
    BaseRollout,
    BaseShardingManager,
    build_agent_loop,
    build_rollout,
    run_agent_loop,
)
from rl_rollout.precision import agreed_dtype
from rl_workers.compute.micro_batches import check_longest_row
from rl_workers.compute.packing import PackedBatch
from rl_workers.compute.policy_step import OPTIONAL, REQUIRED, PolicyStep, loss_inputs
from rl_workers.config import ActorRolloutRefConfig, FSDPConfig, OptimConfig
from rl_workers.engine.base import Answer, HeadOptions, TrainEngine
from rl_workers.engine.layout import Layout
from rl_workers.engine.reduction import reduce_metrics
from rl_workers.errors import WorkerConfigError
from rl_workers.model.building import nothing_new
from rl_workers.model.heads import PolicyModel
from rl_workers.model.hub import load_tokenizer, localized
from rl_workers.profiler import DistProfiler
from rl_workers.roles.base import TrainedWorker
from rl_workers.roles.rows import answer_rows, columns, cut_micro_batches, present, response_mask, result
from rl_workers.roles.weight_exchange import pack_weights, unpack_weights
from rl_workers.user_modules import import_modules

ROLES = ("actor", "rollout", "ref", "actor_rollout", "actor_rollout_ref")
_BUDGET_KEY = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"

_actor = make_nd_compute_dataproto_dispatch_fn(mesh_name="actor")
_rollout = make_nd_compute_dataproto_dispatch_fn(mesh_name="rollout")


class ActorRolloutRefWorker(TrainedWorker):
    """Trains a policy, samples from it and evaluates the reference policy, as its role says.

    Args:
        config: model, actor, rollout and reference.
        role: ``actor``, ``rollout``, ``ref``, ``actor_rollout`` or ``actor_rollout_ref``.

    Methods that take rows are dispatched by mesh: ``actor`` for log-probabilities and updates, ``rollout``
    for generation. They only read what they receive. With adapters, the reference is the actor without them.
    """

    def __init__(self, config: ActorRolloutRefConfig, role: str = "actor_rollout") -> None:
        super().__init__()
        if role not in ROLES:
            raise WorkerConfigError(f"role={role!r}: choose one of {', '.join(ROLES)}")
        import_modules(config.modules)  # what they register, validate() looks up
        config.validate()
        self.config = config
        self.role = role
        self.plays = set(role.split("_"))
        self.actor: TrainEngine | None = None
        self.ref: TrainEngine | None = None
        self.rollout: BaseRollout | None = None
        self._loop: AgentLoop | None = None
        self._manager: BaseShardingManager | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Build what the role needs; collective over the group's ranks."""
        self.config = replace(self.config, model=localized(self.config.model))
        actor = self.config.actor
        sp = actor.ulysses_sequence_parallel_size
        layout = self.setup_device(self.config.device, "actor", actor.fsdp_config.fsdp_size, sp)
        if self.plays & {"actor", "rollout"}:
            rollout = self.config.rollout
            budget = actor.ppo_max_token_len_per_gpu * sp
            check_longest_row(rollout.prompt_length, rollout.response_length, budget, _BUDGET_KEY)
        if "actor" in self.plays:
            self.actor = self._build_policy(actor.fsdp_config, actor.optim)
        if "ref" in self.plays and not self.ref_in_actor:
            self.ref = self._build_policy(self.config.ref.fsdp_config, None)
        if "rollout" in self.plays:
            self._build_rollout(layout)

    @property
    def ref_in_actor(self) -> bool:
        """Whether the reference policy is the actor with its adapters off."""
        return "actor" in self.plays and self.config.model.lora_rank > 0

    def trained(self) -> TrainEngine:
        """The actor."""
        return self.need(self.actor, "actor")

    def _build_policy(self, fsdp: FSDPConfig, optim: OptimConfig | None) -> TrainEngine:
        return self.build_engine(
            PolicyModel,
            AutoModelForCausalLM,
            self.config.model,
            fsdp,
            new=nothing_new,
            optim=optim,
            grad_clip=self.config.actor.grad_clip,
            seed=self.config.seed,
        )

    def _build_rollout(self, layout: Layout) -> None:
        config, path = self.config.rollout, self.config.model.path
        size = config.tensor_model_parallel_size
        if layout.world_size % size:
            raise WorkerConfigError(
                f"rollout.tensor_model_parallel_size={size} does not divide the {layout.world_size} ranks"
            )
        self._register_dispatch_collect_info("rollout", layout.rank // size, layout.rank % size == 0)
        tokenizer = load_tokenizer(self.config.model, self.config.chat_template)
        self.rollout = build_rollout(config, path, layout.device, tokenizer)
        self._loop = build_agent_loop(config, tokenizer)
        if self.actor is not None:
            self._manager = self.actor.sharding_manager(self.rollout)

    @register(dispatch_mode=_rollout, read_only=True)
    @DistProfiler.annotate()
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """One response per row from the present weights; see ``BaseRollout.generate_sequences``."""
        rollout = self.need(self.rollout, "rollout engine")
        if self._manager is None:
            return self._generate(rollout, prompts)
        start = time.perf_counter()
        with self._manager as manager:
            pushed = time.perf_counter() - start
            out = manager.postprocess_data(self._generate(rollout, manager.preprocess_data(prompts)))
        metrics = out.meta_info.get("metrics", {})
        out.meta_info["metrics"] = {**metrics, "timing_s/push_weights/max": pushed}
        return out

    def _generate(self, rollout: BaseRollout, prompts: DataProto) -> DataProto:
        if self._loop is None:
            return rollout.generate_sequences(prompts)
        return run_agent_loop(rollout, self._loop, prompts)

    @register(dispatch_mode=_actor, read_only=True)
    @DistProfiler.annotate()
    def compute_log_prob(self, data: DataProto) -> DataProto:
        """``old_log_probs`` and ``entropys`` ``[B, R]`` of the actor, at ``meta_info["temperature"]``.

        With ``meta_info["sum_pi_squared"]`` also that column: the vocabulary's sum of squared probabilities.
        """
        engine = self.trained()
        temperature, squares = _temperature(data), bool(data.meta_info.get("sum_pi_squared"))
        names = ("old_log_probs", "entropys", *(["sum_pi_squared"] if squares else []))
        batches = self._cut(data, engine)
        out = answer_rows(
            engine, batches, response_mask(data), names, temperature=temperature, sum_pi_squared=squares
        )
        return result(out, temperature=temperature)

    @register(dispatch_mode=_actor, read_only=True)
    @DistProfiler.annotate()
    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        """``ref_log_prob`` ``[B, R]`` of the reference policy, at ``meta_info["temperature"]``."""
        engine = self.need(self.actor if self.ref_in_actor else self.ref, "reference policy")
        batches = self._cut(data, engine, self.config.ref.log_prob_max_token_len_per_gpu)
        options = HeadOptions(temperature=_temperature(data), entropy=False, adapter=False)
        return result(answer_rows(engine, batches, response_mask(data), ("ref_log_prob",), **options))

    @register(dispatch_mode=_actor, read_only=True)
    @DistProfiler.annotate()
    def update_actor(self, data: DataProto) -> DataProto:
        """One optimizer step on the global mini-batch of which ``data`` is this rank's part.

        Columns: ``input_ids attention_mask response_mask``, ``advantages`` (``[B, R]``, or ``[B]`` where all
        tokens of a row have the same) and ``row_weights``; ``old_log_probs`` (absent: the current ones),
        ``ref_log_prob`` (with ``use_kl_loss``), ``rollout_is_weights``, ``rollout_log_probs`` (for the
        mismatch metrics) and what the loss itself names.

        Returns:
            No rows; ``meta_info["metrics"]`` of the whole mini-batch, the same on every rank.
        """
        engine = self.trained()
        config = self.config.actor
        batches = self._cut(data, engine)
        tensors = columns(data, REQUIRED) | present(data, [*OPTIONAL, *loss_inputs(config)])
        step = PolicyStep(config, {k: v.to(engine.layout.device) for k, v in tensors.items()})

        def loss_fn(batch: PackedBatch, answer: Answer) -> Tensor:
            return step.loss(batch, *answer)

        rate = engine.lr
        options = HeadOptions(temperature=_temperature(data), entropy_grad=config.entropy_coeff != 0)
        norm = engine.train(batches, loss_fn, **options)
        metrics = reduce_metrics(step.metrics, engine.layout)
        metrics |= {"actor/grad_norm": norm, "actor/lr": rate}
        return result({}, metrics=metrics)

    @register(dispatch_mode=_actor, read_only=True)
    def collect_weights(self) -> DataProto:
        """The actor's weights in the engine's precision, for engines in other processes (`load_weights`)."""
        engine = self.trained()
        dtype = agreed_dtype(self.config.rollout.dtype, engine.layout.device)
        weights = engine.weights(getattr(torch, dtype))
        return pack_weights(weights, keep=engine.layout.rank == 0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    def load_weights(self, weights: DataProto) -> None:
        """Give the engine what `collect_weights` packed."""
        rollout = self.need(self.rollout, "rollout engine")
        rollout.wake()
        rollout.update_weights(unpack_weights(weights))

    def _cut(self, data: DataProto, engine: TrainEngine, budget: int = 0) -> list[PackedBatch]:
        budget = budget or self.config.actor.ppo_max_token_len_per_gpu
        return cut_micro_batches(data, self.config.model, budget, _BUDGET_KEY, engine.layout)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_hf(self, path: str, dtype: str = "float32") -> None:
        """See ``TrainedWorker.export_hf``; with the chat template that the model was trained with."""
        self.trained().export(path, getattr(torch, dtype))
        if self.config.chat_template and self.trained().layout.rank == 0:
            (Path(path) / "chat_template.jinja").write_text(self.config.chat_template, encoding="utf-8")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_lora(self, path: str) -> None:
        """Write the adapters alone, as peft loads them."""
        self.trained().export_adapter(path)


def _temperature(data: DataProto) -> float:
    return float(data.meta_info.get("temperature", 1.0))
