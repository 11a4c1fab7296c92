"""Which prompts, in which order: files and other sources, the tokenised dataset, the seeded stream over it,
the seed of every sample, and the small tasks that come with the package.
"""
