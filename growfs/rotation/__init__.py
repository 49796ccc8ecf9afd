"""The rules for which files are listed, held and evicted.

Owns the rules (pure functions in `rules`, `eviction` and `pass_order`), the generations, the choice of the generation
that each job sees (`jobs`), and the readers with their holds. The daemon and the simulation call the same rules.

Invariants: what a process saw in a listing stays cached until it lists again, ends or falls silent; a directory keeps a
file of each extension.

Public modules: `rules`, `jobs`, `pass_order`, `parts`, `reader`, `readers`, `generations`, `queries`, `eviction` for
the simulation, and for workers `turnover` and `order_file`. So this file imports nothing.
"""
