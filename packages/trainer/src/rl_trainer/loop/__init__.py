"""The algorithm: `RayPPOTrainer.fit` and its stages, the batch that goes through them, where batches come
from, advantages and updates, validation, and the numbers of a step.
"""
