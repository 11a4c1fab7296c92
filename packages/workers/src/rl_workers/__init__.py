"""FSDP2 workers: actor, rollout, reference, critic, reward model."""

__version__ = "0.1.0"
