"""What every training engine offers, whatever cuts its model into parts.

The interface that roles use, where a rank stands and which rows it gets, and metrics over ranks. What knows
how weights are spread, FSDP's meshes for one, belongs to that engine's own room.
"""
