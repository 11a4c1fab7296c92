"""Running it: from a configuration to a driver program on a cluster, and the jobs beside training
(evaluation, export) that need the same workers.
"""
