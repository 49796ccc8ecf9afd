"""A mount in memory, in simulated time, which runs the rules of `rotation`; used by `growfs plan`.

Owns no rules: the simulation decides with the functions that the daemon uses.

Invariant: it is deterministic; the same files, seed and readers give the same figures.

Public: `simulator.Simulation`, `cache.File`, `exact`, and `plan`, which draws with the extra `report`.
"""
