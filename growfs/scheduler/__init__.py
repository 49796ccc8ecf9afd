"""What is fetched when: downloads in flight, dispatch to workers, admission in order, passes, catalog sync.

Owns each download from the request until it is admitted or has failed, and the passes over the catalog.

Invariants: a file has at most one download at a time; misses come first; drawn files are admitted in the order drawn,
whatever the number of workers.

All downloads take the same path, whoever requests them (`in_flight.Priority`):

    request    Fetcher.ensure (an open waits), Drawer -> Fetcher.draw (a pass), VersionUpdater -> Fetcher.update
    room       Space.reserve_free, else Space.acquire: the only loop that waits for room
    worker     Dispatcher.enqueue, the only queue before a worker; outcomes go to Fetcher.handle_result at once
    admission  AdmissionQueue, and Admitter, which calls Store.admit in one task, batch after batch

Modules, from the outside in: `readiness` (when a mount is ready), `prefetcher` (draws group after group until a pass is
complete, and requests new versions), `rotating` (which files are drawn in which order, and what a generation lists),
`fetcher` (moves each download through its states), `admission` (in which order they are admitted), `dispatcher` (the
workers), `stream_count` (how many requests run at a time, and how many files workers have ahead), `refresh` (listings),
`space` (room for each download; `growfs.cache.room` estimates unknown sizes), `in_flight` (the downloads), `outage`.

The concurrency protocol. All of this runs on trio's thread: code between two awaits is atomic, and the only lock is the
one in `space`. A new `await` in one of these places would therefore break an invariant:

* `Fetcher.draw`, and `_enqueue` after `Space.acquire` has returned: no other task may start the same file or take the
  same bytes in between. `acquire` asks `Claim.is_wanted` last, without an await after it.
* `Space.reserve_by_eviction`, between the eviction and `Store.reserve`: another task would take the freed bytes.
* `InFlightTable.start_miss`, after it has checked whether a file is in flight: it would be started twice.
* `Fetcher._fail`, `Dispatcher.suspend` and `AdmissionQueue`: each moves several downloads or groups, all or none.
* `Fetcher.handle_result`: the dispatcher calls it while it processes a worker's report.
* `Admitter._admit`, between the return of `Store.admit` and the last `move`: a file would be cached and in flight.

These may interleave, and are handled: While a task waits for room, its download may fail along with another of its
group (`lacks_room` is asked again). While a group is being admitted, a reader may open it (`Place.TAKEN`). While the
catalog learns that a file has changed, its download is FETCHING without a worker: neither `suspend` nor the failure of
another of its group moves it. While a generation begins, nothing is evicted, and no new version is admitted
(`Generations.unchanged`). After an unexpected error, `Fetcher.run` is called again, and begins with the downloads that
the error left in one of these states (`InFlightTable.stranded`).
"""
