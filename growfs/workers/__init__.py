"""The child processes: the message protocol, the pool, and what runs in a child (worker, downloader, producer).

Owns the processes. Listing, downloading, sorting and producing happen here, so that neither the GIL nor a crash reaches
a reader.

Always: a child writes below partial/ only and ends with the daemon. `worker`, `downloader` and `producer` import
nothing of the daemon's, and no trio, because they start with each mount.

For others: `pool` and `messages` (the daemon's side). Nothing is imported from here by this file, for the same reason.
"""
