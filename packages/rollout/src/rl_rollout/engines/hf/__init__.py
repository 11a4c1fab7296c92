"""The transformers engine: no extra dependency, every platform, the reference for the others.

- the rollout: padding, the token loop, weights in
- what makes it quick on a CPU (attention) and right (sampling, one random number per token)
"""
