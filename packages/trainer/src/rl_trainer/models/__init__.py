"""Small models to start with, made on this machine: SmolLM2 from its GGUF file, and a two-layer Llama."""
