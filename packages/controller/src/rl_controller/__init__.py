"""A Ray single controller: worker groups, resource pools, fused workers."""

__version__ = "0.1.0"
