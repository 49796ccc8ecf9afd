"""What is fetched when: downloads in flight, dispatch to workers, admission in order, prefetch, catalog sync.

Owns each download from the request until it is admitted or failed, and the passes over the catalog.

Always: a file is downloaded at most once at a time; misses come first; drawn files are admitted in the order drawn,
whatever the number of workers.

Public modules, from the outside in: `startup` and `readiness` (when a mount is ready), `prefetch` (the passes),
`drawer` (space for each drawn group), `order` (computed by workers), `refresh` (listings and new versions), `fetcher`
(misses, draws and updates), `in_flight` (the table of downloads), `dispatcher` (the workers), `groups`,
`size_estimate`. `admission` and `concurrency` are internal.
"""
