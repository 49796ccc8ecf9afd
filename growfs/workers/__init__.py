"""The child processes: the message protocol, the pool, and the code of the children (worker, downloader).

Owns the processes. Listing, downloading and sorting happen here, so that neither the GIL nor a crash affects a reader.

Invariants: a child writes only below partial/, and ends with the daemon. `worker` and `downloader` import nothing from
the daemon, and no trio, because they start with each mount. For the same reason this file imports nothing.

Public modules: `fork_server`, `pool` and `messages`, the daemon's side.
"""
