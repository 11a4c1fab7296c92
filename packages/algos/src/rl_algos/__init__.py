"""Pure-torch algorithms of LLM reinforcement learning: advantages, losses, KL, aggregation."""

from rl_algos.aggregation import AGGREGATION_MODES, AggregationMode, agg_loss, loss_weights, weighted_sum
from rl_algos.entropy import compute_entropy_loss, entropy_from_logits
from rl_algos.errors import (
    DTypeError,
    DuplicateNameError,
    NonFiniteError,
    OptionError,
    RLAlgosError,
    ShapeError,
    UnknownNameError,
)
from rl_algos.evaluation import best_at_k, compute_maj_at_k, compute_pass_at_k, worst_at_k
from rl_algos.gae import compute_gae_advantage_return
from rl_algos.groups import GroupIndex, GroupStats, group_codes, group_stats
from rl_algos.grpo import compute_dr_grpo_outcome_advantage, compute_grpo_outcome_advantage
from rl_algos.kl import full_kl, kl_loss, kl_penalty
from rl_algos.kl_controller import AdaptiveKLController, FixedKLController
from rl_algos.masking import masked_mean, masked_sum, masked_var, masked_whiten
from rl_algos.metrics import Metric, merge_metrics
from rl_algos.mismatch import rollout_mismatch_metrics
from rl_algos.ppo import compute_policy_loss, compute_policy_loss_clip_higher, compute_policy_loss_vanilla
from rl_algos.registry import (
    ADV_ESTIMATOR_REGISTRY,
    POLICY_LOSS_REGISTRY,
    AdvantageEstimator,
    AdvEstSpec,
    PolicyLossSpec,
    get_adv_estimator_fn,
    get_adv_estimator_spec,
    get_policy_loss_fn,
    get_policy_loss_spec,
    register_adv_est,
    register_policy_loss,
)
from rl_algos.reinforce_plus_plus import (
    compute_discounted_returns,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
)
from rl_algos.reward_shaping import apply_kl_penalty, overlong_penalty, place_on_last_token
from rl_algos.rloo import compute_rloo_outcome_advantage
from rl_algos.token_loss import PolicyLossOutput, Weighting
from rl_algos.validation import check_finite
from rl_algos.value_loss import compute_value_loss, value_loss

__version__ = "0.1.0"

__all__ = [
    "ADV_ESTIMATOR_REGISTRY",
    "AGGREGATION_MODES",
    "POLICY_LOSS_REGISTRY",
    "AdaptiveKLController",
    "AdvEstSpec",
    "AdvantageEstimator",
    "AggregationMode",
    "DTypeError",
    "DuplicateNameError",
    "FixedKLController",
    "GroupIndex",
    "GroupStats",
    "Metric",
    "NonFiniteError",
    "OptionError",
    "PolicyLossOutput",
    "PolicyLossSpec",
    "RLAlgosError",
    "ShapeError",
    "UnknownNameError",
    "Weighting",
    "agg_loss",
    "apply_kl_penalty",
    "best_at_k",
    "check_finite",
    "compute_discounted_returns",
    "compute_dr_grpo_outcome_advantage",
    "compute_entropy_loss",
    "compute_gae_advantage_return",
    "compute_grpo_outcome_advantage",
    "compute_maj_at_k",
    "compute_pass_at_k",
    "compute_policy_loss",
    "compute_policy_loss_clip_higher",
    "compute_policy_loss_vanilla",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_value_loss",
    "entropy_from_logits",
    "full_kl",
    "get_adv_estimator_fn",
    "get_adv_estimator_spec",
    "get_policy_loss_fn",
    "get_policy_loss_spec",
    "group_codes",
    "group_stats",
    "kl_loss",
    "kl_penalty",
    "loss_weights",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "merge_metrics",
    "overlong_penalty",
    "place_on_last_token",
    "register_adv_est",
    "register_policy_loss",
    "rollout_mismatch_metrics",
    "value_loss",
    "weighted_sum",
    "worst_at_k",
]
