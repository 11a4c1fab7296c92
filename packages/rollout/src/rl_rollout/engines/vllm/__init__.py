"""The vLLM engine, the only room that imports vLLM, and that in functions or in files vLLM loads by name.

- the rollout, and building and ending the engine inside a process that belongs to the trainer
- weights into it: in the process, or from another one (`transfer` is the trainer's side, `shm` a transport)
- `private_api`: everything that isn't vLLM's public API; a new vLLM version is checked there
"""
