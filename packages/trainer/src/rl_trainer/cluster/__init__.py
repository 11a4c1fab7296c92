"""Where a run lives: the Ray cluster that it joins or starts, the pools of processes, which role runs in
which pool, and the worker groups that come of it. Nothing here knows the algorithm.
"""
