"""The engines that `build_rollout` builds, a room each.

- a subclass of `BaseRollout`, its factory under `register_rollout`, and what only that engine needs
- no engine imports another: what two of them share belongs to `base`, `batch` or `weights`
- importing a room imports no engine library beyond this package's dependencies
"""
