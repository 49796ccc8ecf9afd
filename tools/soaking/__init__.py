"""What tools/soak consists of: the files, a remote that fails, readers that check every byte, and the mount."""
