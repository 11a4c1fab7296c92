"""Pure-torch algorithms of LLM reinforcement learning: advantages, losses, KL, aggregation."""

__version__ = "0.1.0"
