"""`tools/bench peers`: the same work by growfs, by the disk itself, and by the alternatives to growfs."""
