"""Generation engines for reinforcement learning: vLLM, transformers, weight sync."""

from rl_rollout.agents.by_name import build_agent_loop
from rl_rollout.agents.loop import (
    AgentLoop,
    AgentRow,
    AsyncEngine,
    SingleTurnLoop,
    Transcript,
    run_agent_loop,
)
from rl_rollout.agents.tool_loop import ToolCall, ToolLoop, observation_ids, parse_tool_calls
from rl_rollout.agents.tools import Calculator, PythonTool, Tool, ToolError
from rl_rollout.base import BaseRollout, build_rollout, register_rollout, registered_rollouts, resolve_name
from rl_rollout.batch.generation import Completion, GenerationRequest, derive_seed
from rl_rollout.batch.mismatch import check_logprob_space, mismatch_metrics
from rl_rollout.batch.responses import eos_response_mask, length_mask, to_batch, unpad_prompts
from rl_rollout.config import RolloutConfig, SamplingConfig, greedy_sampling
from rl_rollout.engine_env import check_engine_env, engine_env
from rl_rollout.engines.hf.rollout import HFRollout
from rl_rollout.engines.vllm.rollout import vLLMRollout
from rl_rollout.engines.vllm.transfer import WeightSender
from rl_rollout.errors import (
    ChatHistoryRewrittenError,
    EngineEnvironmentError,
    EngineStateError,
    LogProbSpaceError,
    RLRolloutError,
    RolloutConfigError,
    RolloutDataError,
    UnknownRolloutError,
)
from rl_rollout.weights.sharding_manager import BaseShardingManager, FSDPVLLMShardingManager
from rl_rollout.weights.sync import stream_weights

__version__ = "0.1.0"

__all__ = [
    "AgentLoop",
    "AgentRow",
    "AsyncEngine",
    "BaseRollout",
    "BaseShardingManager",
    "Calculator",
    "ChatHistoryRewrittenError",
    "Completion",
    "EngineEnvironmentError",
    "EngineStateError",
    "FSDPVLLMShardingManager",
    "GenerationRequest",
    "HFRollout",
    "LogProbSpaceError",
    "PythonTool",
    "RLRolloutError",
    "RolloutConfig",
    "RolloutConfigError",
    "RolloutDataError",
    "SamplingConfig",
    "SingleTurnLoop",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolLoop",
    "Transcript",
    "UnknownRolloutError",
    "WeightSender",
    "build_agent_loop",
    "build_rollout",
    "check_engine_env",
    "check_logprob_space",
    "derive_seed",
    "engine_env",
    "eos_response_mask",
    "greedy_sampling",
    "length_mask",
    "mismatch_metrics",
    "observation_ids",
    "parse_tool_calls",
    "register_rollout",
    "registered_rollouts",
    "resolve_name",
    "run_agent_loop",
    "stream_weights",
    "to_batch",
    "unpad_prompts",
    "vLLMRollout",
]
