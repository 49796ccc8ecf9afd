"""What is fetched when: the downloads in flight, dispatch to workers, admission in order, prefetch, catalog sync.

Owns each download from the moment it is wanted until it is admitted or failed, and the pass over the catalog.

Always: a file is downloaded at most once at a time; a miss goes first; what is drawn is admitted in the order drawn,
whatever the number of workers.

For others: `fetcher`, `prefetch`, `refresh`, `startup`, `dispatcher`, `order`, `readiness`.
"""
