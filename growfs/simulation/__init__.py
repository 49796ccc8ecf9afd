"""A mount in memory, in simulated time, with the rules of `rotation`; for tests, `growfs plan` and `growfs doctor`.

Owns no rules: the simulation decides with the functions that the daemon uses.

Invariant: it is deterministic; the same files, seed and readers give the same figures.

Public: `simulator.Simulation`, `cache.File`, `training` and `exact`.
"""
