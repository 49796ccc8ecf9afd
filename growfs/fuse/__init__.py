"""The kernel's side: what carries the vfs to readers, and what mounts it."""
