"""The kernel adapters: FUSE protocol, session loop, engines, mountpoints.

Owns /dev/fuse and the mountpoint. The vfs decides what a request means; nothing here knows the cache or the remote.

Invariants: all engines pass the same tests. The thread that answers requests never writes a kernel notification.

Public modules: `engine_choice` (choose and run an engine), `mounting` (mount, unmount, list the mounts of this
machine), `connection` (abort the connection of a mount whose daemon was killed).
"""
