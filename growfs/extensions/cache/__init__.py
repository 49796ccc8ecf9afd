"""`growfs cache`: lists and removes caches, which outlive their mounts."""
