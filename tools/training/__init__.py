"""The parts of tools/experiments: what is trained, in which order it reads, and what came out."""
