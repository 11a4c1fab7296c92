"""PPO and GRPO training of language models, end to end."""

__version__ = "0.1.0"
