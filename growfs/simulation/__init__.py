"""A mount in memory, in simulated time, which runs the rules of `rotation`; `growfs plan` asks it.

Owns no rule: what the daemon decides by, the simulation decides by.

Always deterministic: the same files, seed and readers give the same figures.

For others: `simulator.Simulation`, `cache.File`, `plan`; `plot` needs the extra `report`.
"""
