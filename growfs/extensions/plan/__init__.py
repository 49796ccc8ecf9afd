"""`growfs plan`: simulated training runs, as text and pictures."""
