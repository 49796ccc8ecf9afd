"""`growfs doctor`: whether a mount would work here, what would hurt it, and what to expect of it.

Owns no rule of a mount: it asks the functions that the mount itself asks (`fuse.mounting`, `fuse.engine`,
`cache.directory`, `remote`), and says what they say.

Always: it changes nothing and leaves nothing behind, also when it is interrupted. What may wait for a server runs in a
process of its own, which is killed in time. A check fails exactly where mounting would fail.

For others: `examination.diagnose` and `examination.Effort`.
"""
