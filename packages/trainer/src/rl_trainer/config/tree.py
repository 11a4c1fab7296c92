"""The configuration tree: `data actor_rollout_ref critic reward algorithm trainer`.

Plain dataclasses with flat keys; the line under a field is its documentation, and `rl-trainer keys`
prints it. The packages that build a thing own its dataclass; this module composes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl_workers.config import ActorRolloutRefConfig, CriticConfig, RewardModelConfig

from .rules import at_least, check, one_of, positive, within
from .running import AsyncTrainingConfig, TrainerConfig

KL_PENALTIES = ("k1", "k2", "k3", "abs", "kl", "mse", "low_var_kl")
"""Estimators that read the sampled tokens' log-probs alone; `full` would need the vocabulary's."""


@dataclass
class DataConfig:
    """Which prompts are trained on and validated on."""

    train_files: list[str] = field(default_factory=list)
    """Training prompts: JSONL or Parquet files, `datasets` ids, or `reasoning_gym/<task>`."""
    val_files: list[str] = field(default_factory=list)
    """Validation prompts, in the same forms; empty: no validation."""
    train_split: str = "train"
    """Split of a `datasets` id that is trained on."""
    val_split: str = "test"
    """Split of a `datasets` id that is validated on."""
    reasoning_gym_size: int = 1000
    """Prompts made of each reasoning-gym task; validation draws others than training."""
    prompt_key: str = "prompt"
    """Column that holds the prompt: a string or a list of chat messages."""
    train_batch_size: int = 256
    """Prompts in one training step; each is sampled `rollout.n` times."""
    max_prompt_length: int = 512
    """Longest prompt, in tokens."""
    max_response_length: int = 512
    """Longest response, in tokens."""
    chat_template: str = ""
    """File with a Jinja chat template; empty: the tokenizer's own. It is exported with the model."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, e.g. `enable_thinking: false`; written into it, for the export too."""
    system_prompt: str = ""
    """System message of prompts (lists of messages) that bring none."""
    response_prefill: str = ""
    """What every answer begins with: part of the prompt, neither trained on nor scored."""
    filter_overlong_prompts: bool = True
    """Leave out (and count) prompts longer than `max_prompt_length`; otherwise they are an error."""
    shuffle: bool = True
    """Shuffle the training prompts anew in each epoch, as a function of the seed and the epoch."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work; `prefix` is the keys' parent."""
        check(bool(self.prompt_key), f"{prefix}.prompt_key", self.prompt_key, "name the prompts' column")
        for name in ("train_batch_size", "max_prompt_length", "max_response_length", "reasoning_gym_size"):
            positive(f"{prefix}.{name}", getattr(self, name))


@dataclass
class RewardConfig:
    """How a response becomes a number."""

    function: str = ""
    """Rule reward: a built-in name (gsm8k, math_verify, ...), `package.module:name` or `file.py:name`."""
    functions: list[str] = field(default_factory=list)
    """Several rule rewards in place of `function`; their sum, weighted by `weights`, is the reward."""
    weights: list[float] = field(default_factory=list)
    """One weight for each of `functions`; empty: 1 each."""
    timeout_s: float = 30.0
    """Longest time for one call; a row that takes longer alone is left out of the step and counted."""
    num_processes: int = 1
    """Processes of each worker that compute rule rewards side by side."""
    model_enable: bool = False
    """Add the score of a reward model to the rule reward."""
    model: RewardModelConfig = field(default_factory=RewardModelConfig)
    """The reward model, read where `model_enable` is set."""
    overlong_buffer_len: int = 0
    """DAPO's soft overlong penalty: its last so many tokens cost up to `overlong_penalty_factor`; 0: off."""
    overlong_penalty_factor: float = 1.0
    """Largest overlong penalty."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work."""
        both = bool(self.function and self.functions)
        check(not both, f"{prefix}.functions", self.functions, "takes the place of reward.function: set one")
        rule = f"must hold one number for each of functions={self.functions}, or nothing"
        check(len(self.weights) in (0, len(self.functions)), f"{prefix}.weights", self.weights, rule)
        positive(f"{prefix}.timeout_s", self.timeout_s)
        positive(f"{prefix}.num_processes", self.num_processes)
        at_least(f"{prefix}.overlong_buffer_len", self.overlong_buffer_len, 0)
        at_least(f"{prefix}.overlong_penalty_factor", self.overlong_penalty_factor, 0)

    @property
    def rules(self) -> list[str]:
        """The rule rewards, one or several or none."""
        return self.functions or [self.function] * bool(self.function)


@dataclass
class KLControlConfig:
    """Coefficient of the KL penalty in the reward."""

    type: str = "fixed"
    """`fixed` or `adaptive` (Ziegler et al. 2019)."""
    kl_coef: float = 0.001
    """(Initial) coefficient."""
    horizon: int = 10000
    """Adaptive: samples over which the coefficient reacts."""
    target_kl: float = 0.1
    """Adaptive: KL to hold."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work."""
        one_of(f"{prefix}.type", self.type, ("fixed", "adaptive"))
        at_least(f"{prefix}.kl_coef", self.kl_coef, 0)
        positive(f"{prefix}.horizon", self.horizon)
        positive(f"{prefix}.target_kl", self.target_kl)


@dataclass
class FilterGroupsConfig:
    """DAPO's dynamic sampling."""

    enable: bool = False
    """Train only on prompts whose responses differ in raw score; sample others in place of the rest."""
    max_num_gen_batches: int = 5
    """Most batches generated for one step; what was found by then is trained on."""


@dataclass
class RolloutCorrectionConfig:
    """What corrects for the difference between the engine's policy and the trainer's."""

    bypass_mode: bool = False
    """Take the engine's log-probs as the old ones, instead of computing them again."""
    rollout_is: str = "none"
    """Importance weights: none, `token` or `sequence`."""
    rollout_is_upper: float = 2.0
    """Weights above are cut to this, or with a lower bound set to 0."""
    rollout_is_lower: float = 0.0
    """Weights below are set to 0 and weights above the upper bound too (IcePop); 0: truncate only."""
    rollout_is_batch_normalize: bool = False
    """Divide by the batch's mean weight."""
    rollout_rs: str = "none"
    """Rejection by a statistic of the log-ratio: none, `ratio`, `k2` or `k3`."""
    rollout_rs_level: str = "token"
    """What is rejected: a `token`, or a row by the `sum`, `mean` or `max` over its tokens."""
    rollout_rs_upper: float = 2.0
    """Upper bound of the statistic."""
    rollout_rs_lower: float = 0.0
    """Lower bound of the ratio; 0: one over the upper bound."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work."""
        one_of(f"{prefix}.rollout_is", self.rollout_is, ("none", "token", "sequence"))
        one_of(f"{prefix}.rollout_rs", self.rollout_rs, ("none", "ratio", "k2", "k3"))
        one_of(f"{prefix}.rollout_rs_level", self.rollout_rs_level, ("token", "sum", "mean", "max"))
        for kind in ("rollout_is", "rollout_rs"):
            upper, lower = getattr(self, f"{kind}_upper"), getattr(self, f"{kind}_lower")
            positive(f"{prefix}.{kind}_upper", upper)
            key = f"{prefix}.{kind}_lower"
            check(0 <= lower < upper, key, lower, f"must be 0 (off) or more, and below {kind}_upper={upper}")
        bounded = self.rollout_rs in ("k2", "k3") and self.rollout_rs_lower > 0
        key = f"{prefix}.rollout_rs_lower"
        check(not bounded, key, self.rollout_rs_lower, f"{self.rollout_rs} is 0 at best: only ratio has one")

    @property
    def active(self) -> bool:
        """Whether weights or rejections are computed."""
        return self.rollout_is != "none" or self.rollout_rs != "none"


@dataclass
class AlgorithmConfig:
    """From rewards to advantages."""

    adv_estimator: str = "gae"
    """Advantage estimator by its registered name: gae, grpo, rloo, reinforce_plus_plus, ..."""
    gamma: float = 1.0
    """Discount per token."""
    lam: float = 1.0
    """GAE's lambda."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide group advantages by the group's standard deviation (False: Dr. GRPO)."""
    use_kl_in_reward: bool = False
    """Subtract `kl_ctrl.kl_coef` times the KL to the reference policy from each token's reward."""
    kl_penalty: str = "k1"
    """KL estimator in the reward: k1, k2, k3, abs."""
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    """The coefficient's controller."""
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    """Dynamic sampling."""
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    """Correction of the mismatch between engine and trainer."""
    gdpo_reward_keys: list[str] = field(default_factory=list)
    """gdpo: numbers of the reward function's dict that are components of the reward, e.g. score, format."""
    gdpo_reward_weights: list[float] = field(default_factory=list)
    """gdpo: one weight per component; empty: 1 each."""
    clip_cov_ratio: float = 0.0002
    """Share of tokens that the losses clip_cov and kl_cov choose."""
    modules: list[str] = field(default_factory=list)
    """Your own losses, estimators and engines: files or modules imported by driver and workers before names
    are looked up, e.g. `[my_losses.py, package.module]`."""

    def validate(self, prefix: str) -> None:
        """Raise a `ConfigError` for a value that can't work."""
        within(f"{prefix}.gamma", self.gamma, 0, 1)
        within(f"{prefix}.lam", self.lam, 0, 1)
        within(f"{prefix}.clip_cov_ratio", self.clip_cov_ratio, 0, 1)
        one_of(f"{prefix}.kl_penalty", self.kl_penalty.removesuffix("+"), KL_PENALTIES)
        most = f"{prefix}.filter_groups.max_num_gen_batches"
        positive(most, self.filter_groups.max_num_gen_batches)
        weights, keys = self.gdpo_reward_weights, self.gdpo_reward_keys
        rule = f"must hold one number for each of gdpo_reward_keys={keys}, or nothing"
        check(len(weights) in (0, len(keys)), f"{prefix}.gdpo_reward_weights", weights, rule)
        self.kl_ctrl.validate(f"{prefix}.kl_ctrl")
        self.rollout_correction.validate(f"{prefix}.rollout_correction")


@dataclass
class PPOConfig:
    """The whole tree."""

    data: DataConfig = field(default_factory=DataConfig)
    """Prompts."""
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    """Policy: its model, its training, its generation engine and its reference."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """Value model, read where the estimator needs values (gae)."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Rewards."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """Advantages."""
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    """Run."""
    async_training: AsyncTrainingConfig = field(default_factory=AsyncTrainingConfig)
    """Generation beside training, prompt by prompt."""

    def validate(self) -> None:
        """Raise a `ConfigError` for the first value of the trainer's own keys that can't work."""
        self.data.validate("data")
        self.reward.validate("reward")
        self.algorithm.validate("algorithm")
        self.trainer.validate("trainer")
        self.async_training.validate("async_training")

    @property
    def ahead(self) -> int:
        """Batches whose prompts are drawn before they are wanted."""
        return self.async_training.staleness if self.trainer.mode == "async" else self.trainer.staleness


DERIVED = {
    "actor_rollout_ref.chat_template": "data.chat_template",
    "actor_rollout_ref.device": "trainer.device",
    "actor_rollout_ref.modules": "algorithm.modules",
    "actor_rollout_ref.seed": "trainer.seed",
    "actor_rollout_ref.actor.optim.total_training_steps": "trainer.total_training_steps",
    "actor_rollout_ref.rollout.lora_rank": "actor_rollout_ref.model.lora_rank",
    "actor_rollout_ref.rollout.prompt_length": "data.max_prompt_length",
    "actor_rollout_ref.rollout.response_length": "data.max_response_length",
    "actor_rollout_ref.rollout.seed": "trainer.seed",
    "actor_rollout_ref.rollout.trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
    "actor_rollout_ref.rollout.val.seed": "trainer.seed",
    "critic.device": "trainer.device",
    "critic.seed": "trainer.seed",
    "critic.optim.total_training_steps": "trainer.total_training_steps",
    "reward.model.device": "trainer.device",
}
"""Keys of the packages' own configurations that the trainer fills in, and the key that decides each."""
