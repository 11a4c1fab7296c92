"""Pure-torch algorithms of LLM reinforcement learning: advantages, losses, KL, aggregation."""

from rl_algos.aggregation import AGGREGATION_MODES, AggregationMode, agg_loss, loss_weights, weighted_sum
from rl_algos.covariance import (
    compute_policy_loss_clip_cov,
    compute_policy_loss_kl_cov,
    select_clip_cov_tokens,
    select_kl_cov_tokens,
)
from rl_algos.distillation import distillation_kl, topk_distillation_kl
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
from rl_algos.gdpo import compute_gdpo_outcome_advantage
from rl_algos.gigpo import compute_gigpo_outcome_advantage
from rl_algos.group_relative import (
    compute_dr_grpo_outcome_advantage,
    compute_gpg_outcome_advantage,
    compute_grpo_outcome_advantage,
    compute_grpo_passk_outcome_advantage,
    compute_maxrl_outcome_advantage,
    compute_opo_outcome_advantage,
    compute_rloo_outcome_advantage,
)
from rl_algos.groups import GroupIndex, GroupStats, group_codes, group_stats, informative_groups
from rl_algos.kl import AdaptiveKLController, FixedKLController, full_kl, kl_loss, kl_penalty
from rl_algos.masking import masked_mean, masked_sum, masked_var, masked_whiten
from rl_algos.metrics import Metric, merge_metrics
from rl_algos.mismatch import rollout_mismatch_metrics
from rl_algos.optimal_token_baseline import (
    compute_multi_turn_optimal_token_baseline_advantage,
    compute_optimal_token_baseline_advantage,
)
from rl_algos.policy_gradient import (
    compute_policy_loss_cispo,
    compute_policy_loss_dppo_kl,
    compute_policy_loss_dppo_tv,
    compute_policy_loss_dro,
    compute_policy_loss_gpg,
    compute_policy_loss_reinforce,
    compute_policy_loss_topr,
    compute_policy_loss_vespo,
)
from rl_algos.ppo import (
    compute_policy_loss,
    compute_policy_loss_clip_higher,
    compute_policy_loss_sapo,
    compute_policy_loss_vanilla,
)
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
from rl_algos.remax import compute_remax_outcome_advantage
from rl_algos.reward_shaping import apply_kl_penalty, overlong_penalty, pf_ppo_indices, place_on_last_token
from rl_algos.rollout_correction import (
    ImportanceSampling,
    Rejection,
    compute_rollout_correction,
    effective_sample_size,
)
from rl_algos.sequence_ratio import (
    compute_policy_loss_geo_mean,
    compute_policy_loss_gspo,
    compute_policy_loss_luspo,
)
from rl_algos.token_loss import LossBatch, PolicyLossOutput, Weighting
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
    "ImportanceSampling",
    "LossBatch",
    "Metric",
    "NonFiniteError",
    "OptionError",
    "PolicyLossOutput",
    "PolicyLossSpec",
    "RLAlgosError",
    "Rejection",
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
    "compute_gdpo_outcome_advantage",
    "compute_gigpo_outcome_advantage",
    "compute_gpg_outcome_advantage",
    "compute_grpo_outcome_advantage",
    "compute_grpo_passk_outcome_advantage",
    "compute_maj_at_k",
    "compute_maxrl_outcome_advantage",
    "compute_multi_turn_optimal_token_baseline_advantage",
    "compute_opo_outcome_advantage",
    "compute_optimal_token_baseline_advantage",
    "compute_pass_at_k",
    "compute_policy_loss",
    "compute_policy_loss_cispo",
    "compute_policy_loss_clip_cov",
    "compute_policy_loss_clip_higher",
    "compute_policy_loss_dppo_kl",
    "compute_policy_loss_dppo_tv",
    "compute_policy_loss_dro",
    "compute_policy_loss_geo_mean",
    "compute_policy_loss_gpg",
    "compute_policy_loss_gspo",
    "compute_policy_loss_kl_cov",
    "compute_policy_loss_luspo",
    "compute_policy_loss_reinforce",
    "compute_policy_loss_sapo",
    "compute_policy_loss_topr",
    "compute_policy_loss_vanilla",
    "compute_policy_loss_vespo",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_remax_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_rollout_correction",
    "compute_value_loss",
    "distillation_kl",
    "effective_sample_size",
    "entropy_from_logits",
    "full_kl",
    "get_adv_estimator_fn",
    "get_adv_estimator_spec",
    "get_policy_loss_fn",
    "get_policy_loss_spec",
    "group_codes",
    "group_stats",
    "informative_groups",
    "kl_loss",
    "kl_penalty",
    "loss_weights",
    "masked_mean",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "merge_metrics",
    "overlong_penalty",
    "pf_ppo_indices",
    "place_on_last_token",
    "register_adv_est",
    "register_policy_loss",
    "rollout_mismatch_metrics",
    "select_clip_cov_tokens",
    "select_kl_cov_tokens",
    "topk_distillation_kl",
    "value_loss",
    "weighted_sum",
    "worst_at_k",
]
