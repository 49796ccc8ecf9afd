"""What tools/bench measures. A benchmark adds its figures, and returns the title of their table."""
