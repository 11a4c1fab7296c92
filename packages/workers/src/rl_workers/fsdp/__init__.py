"""The engine by FSDP2: every rank holds a part of each weight, and all of them run the whole model.

Meshes, sharding, loading each rank's own rows, optimizer, checkpoints, sharded adapters, and exchange through
shared memory where there is no GPU. What knows DTensors is here and nowhere else.
"""
