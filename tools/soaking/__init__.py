"""The parts of tools/soak: the files, a remote that fails, readers that check every byte, and the mount."""
