"""Hugging Face models and what is put on them, as one process sees them: nothing here is sharded.

Building on no memory, reading a folder's tensors by the model's names, heads that answer per prediction,
adapters, quicker layers on a CPU, and writing a stream of whole tensors as a folder again.
"""
