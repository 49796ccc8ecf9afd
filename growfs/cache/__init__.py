"""The local disk: the database and its schema, the catalog, the cached files and the room for them, recovery.

Owns the cache directory: catalog.sqlite, files/ and partial/.

Invariants: a row means that its file is whole; resident, reserved and orphaned bytes stay within the limit; writes to
the database happen on one thread at a time.

Public modules: `cache_folder`, `database`, `schema`, `catalog`, `listing_diff`, `room`, `store`, `publish`,
`open_files`, `recovery` and `usage`. Workers import `schema`, `catalog` and `listing_diff`, so this file
imports nothing.
"""

NODES_FROM = 1024
"""Lower node ids are for the root and the files of .growfs/."""
