"""A mount in memory, in simulated time, which runs the rules of `rotation`; `growfs plan` uses it.

Owns no rule: the simulation decides with the functions that the daemon decides with.

Always deterministic: the same files, seed and readers give the same figures.

For others: `simulator.Simulation`, `cache.File`, `plan`, which draws with the extra `report`.
"""
