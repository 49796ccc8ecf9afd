"""What is listed, which readers hold it, and what is evicted.

Owns the rules (pure functions in `rules`, `eviction` and `pass_order`), the generations and which job sees which one
(`jobs`), and the readers with their holds. The daemon and the simulation call the same rules.

Always: what a process saw in a listing stays cached until it lists again, ends or falls silent; a directory keeps a
file of each extension.

For others: `rules`, `jobs`, `pass_order`, `holds`, `readers`, `generations`, `turnover`, `queries`, and `eviction` for
the simulation. Workers import `rules`, `pass_order` and `turnover`, so this file imports nothing.
"""
