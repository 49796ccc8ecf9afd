"""The kernel adapters: FUSE protocol, session loop, two engines, mountpoints.

Owns /dev/fuse and the mountpoint. What a request means is the vfs's; nothing here knows the cache or the remote.

Always: both engines pass the same tests. The thread that answers requests never writes a kernel notification.

For others: `engine` (choose and run one), `mounting` (mounts of this machine, mount and unmount).
"""
