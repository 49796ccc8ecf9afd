"""The child processes: the message protocol, the pool, and what runs in a child (worker, downloader, producer).

Owns the processes. Listing, downloading, sorting and producing happen here, so that neither the GIL nor a crash
affects a reader.

Always: a child writes below partial/ only, and ends with the daemon. `worker`, `downloader` and `producer` import
nothing of the daemon's, and no trio, because they start with each mount. For the same reason this file imports nothing.

Public modules: `fork_server`, `pool` and `messages`, the daemon's side.
"""
