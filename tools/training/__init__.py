"""The parts of tools/experiments: the model, the order in which it reads, and the results."""
