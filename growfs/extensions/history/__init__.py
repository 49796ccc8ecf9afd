"""What the cache of a mount held and did over time, for `growfs report` and `growfs top`."""
