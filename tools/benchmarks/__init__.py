"""The benchmarks of tools/bench. A benchmark adds its figures, and returns the title of their table."""
