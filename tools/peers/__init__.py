"""`tools/bench peers`: the same work by growfs, by the disk itself, and by what people would use instead."""
