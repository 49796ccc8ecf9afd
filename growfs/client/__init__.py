"""What talks to a running mount from outside.

It reaches the daemon through the control socket, and the cache's database read-only. Nothing here decides anything
about a mount. Modules for others: `mount` (the object that `growfs.mount` returns), `report` (a page with charts),
`top.app` (`growfs top`), `completion` (what a shell offers), and `mount_helper` (`mount -t fuse.growfs`).
"""
