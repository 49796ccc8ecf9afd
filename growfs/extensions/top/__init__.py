"""`growfs top`: running mounts, live in a terminal.

`watch` polls mounts, `view` draws their state as frames, and `app` shows them and handles the keys. The daemon is only
asked for its status; the rest is read from the cache's database and log.
"""
