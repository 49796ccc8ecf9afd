"""What is fetched when: downloads in flight, dispatch to workers, admission in order, passes, catalog sync.

Owns each download from the request until it is admitted or failed, and the passes over the catalog.

Always: a file is downloaded at most once at a time; misses come first; drawn files are admitted in the order drawn,
whatever the number of workers.

A download takes one way, whoever asks for it (`in_flight.Priority`):

    request    Fetcher.ensure (an open waits), Drawer -> Fetcher.draw (a pass), VersionUpdater -> Fetcher.update
    room       Space.reserve_free, else Space.acquire: the only loop that waits for room
    worker     Dispatcher.enqueue, the only queue before a worker; what comes back goes to Fetcher.handle_result at once
    admission  AdmissionQueue, and Store.admit in one task, batch after batch

Modules, from the outside in: `readiness` (when a mount is ready), `passes` (what is drawn in which order), `drawer`
(draws one group after another, and has new versions fetched), `fetcher` (moves each download through its states),
`refresh` (listings), `space` (room for each download), `in_flight` (the table of downloads, and the order of their
admission), `dispatcher` (the workers), `concurrency` (how many requests run at a time), `outage`, `peers`.

The concurrency protocol. All of this runs on trio's thread: what happens between two awaits is atomic, and nothing here
has another lock than the one in `space`. So a new `await` in one of these places breaks what is said of it:

* `Fetcher.draw`, and `_enqueue` after `Space.acquire` has returned: between them nobody may start the same file, nor
  take the same bytes. `acquire` asks `Claim.is_wanted` last, without an await after it.
* `Space.reserve_by_eviction`, between the eviction and `Store.reserve`: another task would take what was freed.
* `InFlightTable.start_miss`, after it has looked whether a file is in flight: it would be started twice.
* `Fetcher._fail`, `Dispatcher.hold` and `AdmissionQueue`: each moves several downloads or groups, all or none.
* `Fetcher.handle_result`: the dispatcher calls it in the middle of what a worker reports.
* `Fetcher._admit`, between the return of `Store.admit` and the last `move`: a file would be cached and in flight.

What may interleave, and is provided for: while a task waits for room, its download may fail with another of its group
(`lacks_room` is asked again). While a group is being admitted, a reader may open it (`Place.TAKEN`). While the catalog
learns that a file has changed, its download is FETCHING without a worker: neither `hold` nor the failure of another
of its group moves it. While a generation begins, nothing is evicted, and no new version is admitted
(`Generations.unchanged`).
"""
