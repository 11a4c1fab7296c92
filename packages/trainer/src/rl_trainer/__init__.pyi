from .cluster.roles import ResourcePoolManager as ResourcePoolManager
from .cluster.roles import Role as Role
from .config.loading import load_config as load_config
from .config.loading import omega_conf_to_dataclass as omega_conf_to_dataclass
from .config.tree import PPOConfig as PPOConfig
from .data.dataset import PromptDataset as PromptDataset
from .data.dataset import collate as collate
from .data.prompt_stream import PromptStream as PromptStream
from .errors import CheckpointError as CheckpointError
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import RewardError as RewardError
from .errors import RLTrainerError as RLTrainerError
from .errors import TrainingError as TrainingError
from .loop.ray_trainer import RayPPOTrainer as RayPPOTrainer
from .loop.step_batch import StepBatch as StepBatch
from .reward.manager import RewardManager as RewardManager
from .reward.manager import RewardResult as RewardResult
from .run.launch import run_ppo as run_ppo
from .run.task_runner import TaskRunner as TaskRunner
from .state.run_state import FitResult as FitResult

__version__: str
