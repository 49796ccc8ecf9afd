"""Remotes around a remote: retries, members of archives, files that a producer makes."""
