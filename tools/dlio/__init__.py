"""`tools/bench dlio`: the benchmark DLIO, unmodified, over growfs, plain files and other mounts."""
