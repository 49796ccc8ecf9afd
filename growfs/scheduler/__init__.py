"""What is fetched when: downloads in flight, dispatch to workers, admission in order, prefetch, catalog sync.

Owns each download from the request until it is admitted or failed, and the passes over the catalog.

Always: a file is downloaded at most once at a time; misses come first; drawn files are admitted in the order drawn,
whatever the number of workers.

Modules, from the outside in: `readiness` (when a mount is ready), `passes` (what is drawn in which order), `drawer`
(draws one group after another), `refresh` (listings and new versions), `fetcher` (misses, draws and updates), `space`
(room for each of them), `in_flight` (the table of downloads, and the order of their admission), `dispatcher` (the
workers), `concurrency` (how many requests run at a time), `outage`, `peers`.
"""
