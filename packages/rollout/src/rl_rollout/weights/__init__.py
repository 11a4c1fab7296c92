"""Weights out of a training module, on their way into whatever engine there is.

- streams of full tensors under their Hugging Face names, from FSDP2 shards, with or without adapters
- the hand-over around generation: weights in, memory back, rows to the right ranks

The other end, how an engine takes a stream in, belongs to that engine.
"""
