"""Remotes around another remote: retries, members of archives, files made by a producer."""
