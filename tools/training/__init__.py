"""The parts of tools/experiments: the data and the model, the order in which it reads, real mounts, and the pages."""
