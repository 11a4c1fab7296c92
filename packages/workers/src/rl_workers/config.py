"""Typed configuration of everything this package builds.

Plain dataclasses without unions, so that any configuration system composes them. The line under a
field is its documentation. Values are checked in :meth:`validate` methods, which a trainer calls before
it starts a process; each worker calls them again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rl_rollout.config import RolloutConfig
from rl_rollout.precision import AUTO, DTYPES
from rl_workers.rules import (
    NORMED,
    at_least,
    check,
    check_aggregation,
    check_budget,
    check_device,
    check_kl_loss,
    check_loss,
    check_strategy,
    positive,
)


@dataclass
class ModelConfig:
    """The model, and what is trained of it."""

    path: str = ""
    """A Hugging Face model (safetensors, config, tokenizer): a folder, or an id on the hub (owner/name)."""
    revision: str = ""
    """Branch, tag or commit of a model given by its id; a run keeps the commit that it found."""
    trust_remote_code: bool = False
    """Run code that the model's folder brings."""
    enable_gradient_checkpointing: bool = False
    """Keep only the inputs of each layer and compute the rest again in the backward pass."""
    use_remove_padding: bool = True
    """Pack rows so that no pad token goes through the model; False feeds padded rows to the model's sdpa."""
    share_prompts: bool = True
    """Send a prompt through the model once for all of its responses in a micro-batch (needs packing)."""
    lora_rank: int = 0
    """Rank of the adapters; 0 trains the whole model."""
    lora_alpha: float = 16.0
    """Scale of the adapters: their output is multiplied by alpha / rank."""
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    """Modules that get an adapter, by the end of their names; "all-linear" means every linear layer."""

    def validate(self, prefix: str) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work; ``prefix`` is the key's parent."""
        check(
            bool(self.path), f"{prefix}.path", self.path, "name a Hugging Face model: a folder or owner/name"
        )
        check(self.lora_rank >= 0, f"{prefix}.lora_rank", self.lora_rank, "must be 0 (off) or more")
        positive(self, prefix, "lora_alpha")
        named = bool(self.target_modules) or not self.lora_rank
        check(named, f"{prefix}.target_modules", self.target_modules, "name what gets an adapter")


@dataclass
class OptimConfig:
    """Optimizer and learning-rate schedule."""

    name: str = "adamw"
    """adamw or sgd."""
    lr: float = 1e-6
    """Peak learning rate."""
    beta1: float = 0.9
    """Decay of AdamW's first moment; SGD's momentum is always 0."""
    beta2: float = 0.999
    """Decay of AdamW's second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    lr_scheduler_type: str = "constant"
    """After warm-up: constant, linear or cosine (falling to min_lr_ratio over total_training_steps)."""
    lr_warmup_steps: int = 0
    """Steps over which the rate rises linearly; the first step already has rate lr / (steps + 1)."""
    min_lr_ratio: float = 0.0
    """Where linear and cosine end, as a share of lr."""
    total_training_steps: int = -1
    """Length of the schedule in optimizer steps; a trainer fills it in."""

    def validate(self, prefix: str) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work."""
        check(self.name in ("adamw", "sgd"), f"{prefix}.name", self.name, "choose adamw or sgd")
        kinds = ("constant", "linear", "cosine")
        kind = self.lr_scheduler_type
        check(kind in kinds, f"{prefix}.lr_scheduler_type", kind, f"choose one of {', '.join(kinds)}")
        steps = self.total_training_steps
        falls = kind != "constant"
        check(not falls or steps > 0, f"{prefix}.total_training_steps", steps, f"{kind} needs its length")
        at_least(0, self, prefix, "lr", "weight_decay", "lr_warmup_steps")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            check(0 <= value < 1, f"{prefix}.{name}", value, "must lie in [0, 1)")
        share = self.min_lr_ratio
        check(0 <= share <= 1, f"{prefix}.min_lr_ratio", share, "is a share of lr: between 0 and 1")


@dataclass
class FSDPConfig:
    """How a model is sharded, and in which precision it computes."""

    model_dtype: str = "float32"
    """Precision of the stored (sharded) weights and of the optimizer's state."""
    compute_dtype: str = AUTO
    """Precision of forward and backward: float32, bfloat16, float16, or auto (bfloat16 where the device
    has it)."""
    reduce_dtype: str = "float32"
    """Precision in which gradients are summed over ranks."""
    fsdp_size: int = -1
    """Ranks that share one copy of the weights; fewer than all ranks gives replicas (HSDP); -1 is all."""
    reshard_after_forward: bool = False
    """Free gathered weights between forward and backward and reduce gradients after every micro-batch:
    less memory, more communication."""
    param_offload: bool = False
    """Keep weights, gradients and optimizer state in CPU memory while they are not in use."""

    def validate(self, prefix: str) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work."""
        for key, kinds in (
            ("model_dtype", DTYPES),
            ("compute_dtype", (AUTO, *DTYPES)),
            ("reduce_dtype", DTYPES),
        ):
            value = getattr(self, key)
            check(value in kinds, f"{prefix}.{key}", value, f"choose one of {', '.join(kinds)}")
        size = self.fsdp_size
        check(size == -1 or size > 0, f"{prefix}.fsdp_size", size, "must be -1 (all ranks) or positive")


@dataclass
class PolicyLossConfig:
    """Which policy loss, by its name in rl-algos."""

    loss_mode: str = "vanilla"
    """A name registered with rl_algos.register_policy_loss: vanilla, gspo, cispo, ..."""
    options: dict[str, float] = field(default_factory=dict)
    """Options of that loss beside the clip ranges, by the names of its keywords."""


@dataclass
class ActorConfig:
    """How the policy is trained."""

    strategy: str = "fsdp"
    """The training engine; fsdp is the one that is built."""
    ppo_mini_batch_size: int = 256
    """Rows of one optimizer step, over all ranks."""
    ppo_epochs: int = 1
    """Times that a batch is gone through."""
    ppo_max_token_len_per_gpu: int = 16384
    """Token budget of a micro-batch on one rank; a sequence-parallel group shares what its ranks have."""
    loss_agg_mode: str = "token-mean"
    """How token losses become one number: see rl_algos.loss_weights."""
    loss_scale_factor: int = 0
    """The constant C of seq-mean-token-sum-norm; 0: not set."""
    clip_ratio: float = 0.2
    """PPO's clip range on both sides."""
    clip_ratio_low: float = -1.0
    """Lower clip range; -1: clip_ratio (or the default of a loss that has no clip_ratio)."""
    clip_ratio_high: float = -1.0
    """Upper clip range; -1: clip_ratio (or the default of a loss that has no clip_ratio)."""
    clip_ratio_c: float = 3.0
    """Dual clip: bound of the loss where the advantage is negative."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = False
    """Add the KL distance to the reference to the loss."""
    kl_loss_coef: float = 0.001
    """Weight of that distance."""
    kl_loss_type: str = "k3"
    """Its estimator: see rl_algos.kl_penalty."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""
    ulysses_sequence_parallel_size: int = 1
    """Ranks that share each sequence; must divide the number of attention and key-value heads."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)

    def validate(self, prefix: str) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work."""
        check_strategy(self.strategy, f"{prefix}.strategy")
        check_budget(self.ppo_max_token_len_per_gpu, f"{prefix}.ppo_max_token_len_per_gpu")
        sizes = ("ulysses_sequence_parallel_size", "ppo_mini_batch_size", "ppo_epochs")
        at_least(1, self, prefix, *sizes)
        at_least(0, self, prefix, "clip_ratio", "kl_loss_coef", "grad_clip", "loss_scale_factor")
        finite = math.isfinite(self.entropy_coeff)
        check(finite, f"{prefix}.entropy_coeff", self.entropy_coeff, "must be a finite number")
        for name in ("clip_ratio_low", "clip_ratio_high"):
            value = getattr(self, name)
            rule = "must be 0 or more, or -1 for clip_ratio"
            check(value == -1 or 0 <= value < math.inf, f"{prefix}.{name}", value, rule)
        dual = self.clip_ratio_c
        check(1 < dual < math.inf, f"{prefix}.clip_ratio_c", dual, "bounds a ratio: must be above 1")
        check_kl_loss(self.kl_loss_type, f"{prefix}.kl_loss_type")
        check_aggregation(self.loss_agg_mode, prefix)
        normed, constant = self.loss_agg_mode == NORMED, self.loss_scale_factor
        rule = f"loss_agg_mode={NORMED} needs its constant, e.g. the longest response; other modes have none"
        check(normed == (constant > 0), f"{prefix}.loss_scale_factor", constant, rule)
        loss = self.policy_loss
        check_loss(loss.loss_mode, loss.options, f"{prefix}.policy_loss")
        self.optim.validate(f"{prefix}.optim")
        self.fsdp_config.validate(f"{prefix}.fsdp_config")


@dataclass
class RefConfig:
    """How the reference policy computes."""

    log_prob_max_token_len_per_gpu: int = 0
    """Token budget of a micro-batch; 0: that of the actor."""
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@dataclass
class ActorRolloutRefConfig:
    """One process that plays actor, rollout and reference, or any of them."""

    model: ModelConfig = field(default_factory=ModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)
    device: str = "auto"
    """auto (cuda where there is one), cpu or cuda."""
    seed: int = 0
    """Seed of new weights (adapters)."""
    modules: list[str] = field(default_factory=list)
    """Modules and files imported before names are looked up; see :func:`rl_workers.import_modules`."""
    chat_template: str = ""
    """Text of the chat template, exported with the model; "": the tokenizer's own."""

    def validate(self) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work."""
        check_device(self.device, "actor_rollout_ref.device")
        self.model.validate("actor_rollout_ref.model")
        self.actor.validate("actor_rollout_ref.actor")
        at_least(0, self.ref, "actor_rollout_ref.ref", "log_prob_max_token_len_per_gpu")
        self.ref.fsdp_config.validate("actor_rollout_ref.ref.fsdp_config")


@dataclass
class CriticConfig:
    """The value model and how it is trained."""

    strategy: str = "fsdp"
    """The training engine; fsdp is the one that is built."""
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)
    ppo_mini_batch_size: int = 256
    """Rows of one optimizer step, over all ranks."""
    ppo_epochs: int = 1
    """Times that a batch is gone through."""
    ppo_max_token_len_per_gpu: int = 32768
    """Token budget of a micro-batch on one rank."""
    cliprange_value: float = 0.5
    """How far a value may move from the old one before its loss is clipped."""
    loss_agg_mode: str = "token-mean"
    """How token losses become one number: see rl_algos.loss_weights."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0: no clipping."""
    ulysses_sequence_parallel_size: int = 1
    """Ranks that share each sequence."""
    device: str = "auto"
    """auto (cuda where there is one), cpu or cuda."""
    seed: int = 0
    """Seed of the new value head."""

    def validate(self) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work."""
        check_device(self.device, "critic.device")
        check_strategy(self.strategy, "critic.strategy")
        check_budget(self.ppo_max_token_len_per_gpu, "critic.ppo_max_token_len_per_gpu")
        sizes = ("ulysses_sequence_parallel_size", "ppo_mini_batch_size", "ppo_epochs")
        at_least(1, self, "critic", *sizes)
        positive(self, "critic", "cliprange_value")
        at_least(0, self, "critic", "grad_clip")
        check_aggregation(self.loss_agg_mode, "critic", without=NORMED)
        self.model.validate("critic.model")
        self.optim.validate("critic.optim")
        self.fsdp_config.validate("critic.fsdp_config")


@dataclass
class RewardModelConfig:
    """A sequence classifier that scores responses."""

    strategy: str = "fsdp"
    """The engine; fsdp is the one that is built."""
    model: ModelConfig = field(default_factory=ModelConfig)
    input_tokenizer: str = ""
    """Folder of the policy's tokenizer; "": the two models share one and token ids go over as they are."""
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)
    max_length: int = 4096
    """Longest text in the classifier's tokens; longer ones keep their end."""
    forward_max_token_len_per_gpu: int = 32768
    """Token budget of a micro-batch on one rank."""
    device: str = "auto"
    """auto (cuda where there is one), cpu or cuda."""

    def validate(self) -> None:
        """Raise :class:`WorkerConfigError` on a value that cannot work."""
        check_device(self.device, "reward.model.device")
        check_strategy(self.strategy, "reward.model.strategy")
        check_budget(self.forward_max_token_len_per_gpu, "reward.model.forward_max_token_len_per_gpu")
        positive(self, "reward.model", "max_length")
        self.model.validate("reward.model.model")
        for name in ("lora_rank", "enable_gradient_checkpointing"):
            value = getattr(self.model, name)
            check(
                not value, f"reward.model.model.{name}", value, "a reward model is not trained: leave it out"
            )
        self.fsdp_config.validate("reward.model.fsdp_config")
