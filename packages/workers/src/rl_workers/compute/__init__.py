"""Rows as the model sees them, and the mathematics on them.

Packing and cutting into micro-batches, attention over packed rows, sequence parallelism, log-probabilities,
the actor's loss, and quicker forms of a layer's norm and rotation. Tensors in, tensors out: no weights are
loaded or sharded here, and no optimizer steps.
"""
