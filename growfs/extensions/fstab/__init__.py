"""`mount -t fuse.growfs`, and lines of fstab(5). It has no command: mount(8) runs growfs under another name."""
