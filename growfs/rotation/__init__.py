"""What is listed, which readers hold it, and what is evicted.

Owns the rules (pure functions in `rules` and `draw_order`), the current generation, the readers and their holds, and
the order of eviction. The daemon and the simulation call the same rules.

Always: what a process saw in a listing stays cached until it lists again, ends or falls silent; a directory keeps a
file of each extension.

For others: `rules`, `draw_order`, `reader`, `registry`, `generations`, `turnover`, `eviction`. Workers import `rules`,
`draw_order` and `turnover`, so this file imports nothing.
"""
