"""`growfs doctor`: whether a mount would work here, what would impair it, and what to expect of it.

Owns none of a mount's rules: it calls the functions that the mount itself calls (`fuse.mounting`, `fuse.engine_choice`,
`cache.cache_folder`, `remote`), and reports their results.

Invariants: it changes nothing and leaves nothing behind, even when it is interrupted. Steps that may wait for a server
run in a separate process, which is killed in time. A check fails exactly if mounting would fail.

Public: `examination.diagnose`.
"""
