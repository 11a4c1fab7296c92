"""Workers: what answers the controller's calls.

Actor, rollout and reference in one, critic, reward model; what they share; rows of a call to micro-batches
and back. They use an engine by its interface alone (`engine/base.py`); only `base.py` says which one it is.
"""
