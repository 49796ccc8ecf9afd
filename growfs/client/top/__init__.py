"""`growfs top`: running mounts, live in a terminal.

`watch` polls mounts, `view` draws what it knows as frames, and `app` shows them and follows the keys. The daemon is
asked for its status only; the rest comes from the cache's database and log, which are read here.
"""
