"""Generation engines for reinforcement learning: vLLM, transformers, weight sync."""

__version__ = "0.1.0"
