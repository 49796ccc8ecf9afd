"""The parts that talk to a running mount from outside.

They reach the daemon through the control socket, and the cache's database read-only. Nothing here makes decisions for a
mount. Public modules: `mount` (the object that `growfs.mount` returns), `arguments` (what several commands take), and
`completion` (shell completion).
"""
