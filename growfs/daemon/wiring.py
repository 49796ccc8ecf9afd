"""The composition root: constructs the components of a mount and connects them. Nothing else constructs one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

from growfs.cache.budget import Budget
from growfs.cache.cache_folder import CacheFolder
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.history import History, Sample
from growfs.cache.recovery import recover
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.daemon.commands import FileCommands, MountCommands, Setter
from growfs.daemon.control import Command, Control
from growfs.daemon.option_parsers import listening
from growfs.daemon.options import MountRequest, Options
from growfs.daemon.snapshot import StatusSource
from growfs.daemon.virtual_files import RecentLog, virtual_files
from growfs.errors import GrowfsError
from growfs.folder.folder_engine import FolderEngine
from growfs.fuse.engine import Engine, EngineChoice
from growfs.remote.filter import PathFilter
from growfs.rotation.generations import Demand, Generations
from growfs.rotation.pass_order import Pass
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Holds
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.drawer import Drawer
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import Groups, InFlightTable, SizeEstimate
from growfs.scheduler.outage import Outage, probe_in_worker
from growfs.scheduler.passes import PassOrder, Prefetcher, plan_next
from growfs.scheduler.peers import Peers, PeerSettings
from growfs.scheduler.readiness import PrefetchState, StartCondition, StartGate
from growfs.scheduler.refresh import CatalogSync, VersionUpdater
from growfs.scheduler.space import Space, WaitingClaims
from growfs.status import MountInfo, MountStatus
from growfs.vfs.filesystem import Misses, Opens, Vfs
from growfs.vfs.virtual import VirtualFolder
from growfs.workers.pool import WorkerPool


class Service(Protocol):
    """A component with a task of its own, which runs until it is cancelled."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Components:
    """What the daemon itself needs of a mount. running: the components with a task of their own."""

    database: Database
    catalog: Catalog
    store: Store
    usage: UsageCounters
    history: History
    start: StartGate
    status: StatusSource
    engine: Engine
    running: tuple[Service, ...]


@dataclass(frozen=True, slots=True)
class _Cache:
    database: Database
    catalog: Catalog
    store: Store
    budget: Budget
    usage: UsageCounters


@dataclass(frozen=True, slots=True)
class _Rotation:
    generations: Generations
    readers: Readers
    folder: FolderEngine | None
    holds: Callable[[], Holds]


@dataclass(frozen=True, slots=True)
class _Scheduler:
    outage: Outage
    catalog_sync: CatalogSync
    order: PassOrder
    space: Space
    dispatcher: Dispatcher
    fetcher: Fetcher
    prefetch: PrefetchState
    prefetcher: Prefetcher
    updater: VersionUpdater
    start: StartGate
    peers: Peers | None


@dataclass(frozen=True, slots=True)
class _FrontEnd:
    """What readers see the cached files through. commands: those of its own."""

    engine: Engine
    reason: str
    misses: Misses
    opens: Opens
    commands: dict[str, Command]


def build(request: MountRequest, url: str, folder: CacheFolder, workers: WorkerPool, recent: RecentLog) -> Components:
    """Construct and connect the components, from the lowest layer up. url: without secrets."""

    async def snapshot() -> MountStatus:
        return await status.snapshot()

    options = request.options
    metrics = None
    if options.metrics_addr:
        from growfs.daemon.metrics import MetricsServer  # which takes 0.1 s

        metrics = MetricsServer(listening("--metrics-addr", *options.metrics_addr), snapshot)
    producer = request.remote.producer
    cache = _build_cache(options, folder, producer is not None and producer.rename is not None)
    first = Pass(options.seed, 1, options.partition, options.group, freeze=options.freeze)
    peers = _build_peers(request, workers, cache, first.place)
    order = PassOrder(workers, cache.catalog, folder.partial, first, peers.locate if peers else None)
    waiting = WaitingClaims()
    rotation = _build_rotation(request, cache, workers, order, waiting)
    scheduler = _build_scheduler(request, folder, workers, cache, rotation, order, waiting, peers)

    virtual = VirtualFolder(virtual_files(folder.database, snapshot, recent), folder.partial)
    if engine := rotation.folder:
        front = _FrontEnd(engine, engine.reason, Misses(), engine.opens, engine.table())
    else:
        front = _build_mount(options, virtual, cache, rotation, scheduler)
    mount = MountInfo(
        version=version("growfs"),
        url=url,
        mountpoint=str(request.mountpoint),
        cache_dir=str(folder.path),
        pid=os.getpid(),
        engine=front.engine.name,
        engine_reason=front.reason,
        metrics_url=metrics.url if metrics else None,
        seed=options.seed,
        partition="/".join(map(str, options.partition)) if options.partition else None,
    )
    settings = {**mount, "options": options.changed()}
    cache.database.write_now(lambda writer: set_meta(writer, "mount", json.dumps(settings)))
    status = StatusSource(
        mount=mount,
        database=cache.database,
        catalog=cache.catalog,
        store=cache.store,
        budget=cache.budget,
        usage=cache.usage,
        generations=rotation.generations,
        readers=rotation.readers,
        outage=scheduler.outage,
        catalog_sync=scheduler.catalog_sync,
        order=scheduler.order,
        fetcher=scheduler.fetcher,
        prefetch=scheduler.prefetch,
        prefetcher=scheduler.prefetcher,
        start=scheduler.start,
        peers=scheduler.peers,
        misses=front.misses,
        opens=front.opens,
        engine=front.engine,
    )
    history = History(cache.database, partial(_sample, cache, rotation, scheduler, front.misses))
    commands = _commands(status, cache, rotation, scheduler, front.misses)
    control = Control(folder.path, commands | front.commands)
    return Components(
        cache.database,
        cache.catalog,
        cache.store,
        cache.usage,
        history,
        scheduler.start,
        status,
        front.engine,
        running=(
            scheduler.outage,
            scheduler.catalog_sync,
            rotation.readers,
            rotation.generations,
            scheduler.space,
            scheduler.fetcher,
            scheduler.prefetcher,
            scheduler.updater,
            cache.usage,
            history,
            control,
            *([metrics] if metrics else []),
            *([scheduler.peers] if scheduler.peers else []),
        ),
    )


def _build_mount(
    options: Options, virtual: VirtualFolder, cache: _Cache, rotation: _Rotation, scheduler: _Scheduler
) -> _FrontEnd:
    fetch = scheduler.fetcher.ensure if options.on_miss == "wait" else None
    vfs = Vfs(cache.catalog, cache.store, rotation.readers, virtual, fetch)
    vfs.file_opened.connect(cache.usage.count_open)
    for removed in (scheduler.catalog_sync.removed, cache.store.replaced):
        removed.connect(vfs.forget_names)
    choice = EngineChoice(options.engine, cache.store.folder / "partial")
    engine = choice.create(vfs)
    vfs.name_invalidated.connect(engine.forget_name)
    cache.store.damaged.connect(vfs.note_damaged)
    cache.store.descriptor_closed.connect(engine.drop_descriptor)
    return _FrontEnd(engine, choice.reason, vfs.misses, vfs.opens, {})


def _build_cache(options: Options, folder: CacheFolder, has_names_of_its_own: bool) -> _Cache:
    """has_names_of_its_own: the files are not named as those of the remote, which --include and --exclude match."""
    database = Database(folder.database)
    recover(database, folder.path)
    catalog = Catalog(database, options.freeze)
    store = Store(folder.path, database, catalog, options.cache_size, options.min_free)
    if not has_names_of_its_own:
        given = json.dumps([options.include, options.exclude])
        store.count_dropped(
            catalog.forget_excluded(PathFilter(options.include, options.exclude), given, store.drop_files)
        )
    budget = Budget(database, options.remote_budget)
    usage = UsageCounters(database, budget)
    store.admitted.connect(usage.mark_changed)
    budget.changed.connect(store.space_freed.notify)
    return _Cache(database, catalog, store, budget, usage)


def _build_rotation(
    request: MountRequest, cache: _Cache, workers: WorkerPool, order: PassOrder, waiting: WaitingClaims
) -> _Rotation:
    def demand() -> Demand:
        return Demand(order.share.files, order.share.bytes, waiting.largest, waiting.versions)

    options, database, catalog, store = request.options, cache.database, cache.catalog, cache.store
    generations = Generations(
        database,
        store,
        partial(plan_next, workers, store, database.path),
        demand,
        rotation=options.rotation,
        turnover=options.turnover,
        show_files=options.show_files,
        settle_s=options.settle,
    )
    readers = Readers(generations, options.hold_idle, cache.usage.recently_opened)
    folder = None
    if request.fills:
        folder = FolderEngine(
            request.mountpoint, options.keep_generations, database, catalog, store, cache.usage, generations
        )
    holders = folder or readers
    for evictable in (holders.released, generations.written):
        evictable.connect(store.space_freed.notify)
    return _Rotation(generations, readers, folder, holders.holds)


def _build_scheduler(
    request: MountRequest,
    folder: CacheFolder,
    workers: WorkerPool,
    cache: _Cache,
    rotation: _Rotation,
    order: PassOrder,
    waiting: WaitingClaims,
    peers: Peers | None,
) -> _Scheduler:
    options, catalog, store = request.options, cache.catalog, cache.store
    outage = Outage(partial(probe_in_worker, workers, catalog, folder.partial))
    catalog_sync = CatalogSync(workers, catalog, store, outage, options.refresh, request.remote.is_endless)
    has_producer = request.remote.producer is not None
    sizes = SizeEstimate(varies=has_producer)
    if has_producer and (size := store.largest_resident()) is not None:
        sizes.learn(size)
    downloads = InFlightTable(catalog, Groups(cache.database, options.group), folder.partial)
    space = Space(
        cache.database,
        store,
        rotation.generations,
        cache.budget,
        outage,
        sizes,
        waiting,
        rotation.holds,
        peers.awaits if peers else None,
    )
    dispatcher = Dispatcher(
        workers, request.processes, options.bandwidth, has_producer, peers.holders if peers else None
    )
    dispatcher.received.connect(cache.budget.spend)
    dispatcher.received.connect(outage.note_received)
    dispatcher.refused.connect(outage.suspect)
    outage.began.connect(dispatcher.recall)
    outage.ended.connect(dispatcher.resume)
    outage.ended.connect(catalog_sync.retry)
    fetcher = Fetcher(
        downloads,
        store,
        space,
        sizes,
        dispatcher,
        rotation.generations,
        catalog_sync,
        outage,
        options.miss_timeout,
    )
    dispatcher.received.connect(fetcher.counters.add_bytes)
    dispatcher.received_from_peers.connect(fetcher.counters.add_peer_bytes)
    condition = StartCondition(
        options.wait_files, options.wait_bytes, options.no_wait, options.list_timeout, options.show_files or 0
    )
    prefetch = PrefetchState(
        condition,
        lambda: store.resident_files >= order.share.files,
        lambda: waiting.is_draw_held and len(downloads) == 0,
        outage,
    )
    store.returned_to_pass.connect(prefetch.draw_evicted)
    space.rotated.connect(prefetch.note_rotation)
    for more in (space.resized, rotation.generations.rotation_changed):
        more.connect(prefetch.invalidate_order)
    for changed in (outage.began, outage.ended):
        changed.connect(prefetch.changed.notify)
    prefetch.changed.connect(store.space_freed.notify)  # what waits for room may not be wanted any longer
    drawer = Drawer(catalog, store, fetcher, space, sizes, prefetch)
    fetcher.finished.connect(drawer.handle_finished)
    fetcher.finished.connect(lambda _: waiting.reconsider())
    fetcher.finished.connect(lambda _: store.space_freed.notify())
    prefetcher = Prefetcher(catalog, store, catalog_sync, order, fetcher, drawer, space, prefetch)
    updater = VersionUpdater(catalog, fetcher, catalog_sync, lambda: prefetch.is_interrupted, prefetch.changed)
    start = StartGate(catalog, store, catalog_sync, fetcher, cache.budget, prefetch, outage)
    start.opened.connect(dispatcher.move_to_background)
    if peers:
        order.computed.connect(peers.note_order)
        drawer.drawn.connect(peers.note_drawn)
    return _Scheduler(
        outage, catalog_sync, order, space, dispatcher, fetcher, prefetch, prefetcher, updater, start, peers
    )


def _build_peers(
    request: MountRequest, workers: WorkerPool, cache: _Cache, place: Callable[[str], float]
) -> Peers | None:
    options, token = request.options, request.remote.peer_token
    if not (options.peers and options.peer_addr and token):
        return None
    listening("--peer-addr", *options.peer_addr).close()  # a worker will
    settings = PeerSettings(options.peers, options.peer_addr, token, options.peer_bandwidth)
    return Peers(settings, workers, cache.database, cache.catalog, cache.store, place)


def _sample(cache: _Cache, rotation: _Rotation, scheduler: _Scheduler, misses: Misses) -> Sample:
    """The figures of which a history is kept."""
    store, summary, generation = cache.store, cache.usage.summary, rotation.generations.current
    return Sample(
        state=scheduler.prefetch.mount_state.value,
        generation=rotation.generations.number,
        files=store.resident_files,
        bytes=store.resident_bytes,
        limit_bytes=store.limit_bytes,
        listed_files=generation.files if generation else 0,
        share_files=scheduler.order.share.files,
        files_seen=summary.files_seen,
        opens=summary.opens,
        fetched_files=scheduler.fetcher.counters.files,
        fetched_bytes=scheduler.fetcher.counters.bytes,
        evicted_files=store.evicted_files,
        missed_files=misses.files,
        wait_ms=int(1000 * misses.wait_s),
    )


def _commands(
    status: StatusSource, cache: _Cache, rotation: _Rotation, scheduler: _Scheduler, misses: Misses
) -> dict[str, Command]:
    mount = MountCommands(
        status.snapshot,
        scheduler.prefetch.pause,
        rotation.readers.release,
        misses.processes,
        _setters(cache, rotation, scheduler),
    )
    files = FileCommands(cache.database, cache.catalog, cache.store, scheduler.space, scheduler.fetcher.ensure)
    return mount.table() | files.table()


def _setters(cache: _Cache, rotation: _Rotation, scheduler: _Scheduler) -> dict[str, Setter]:
    """What `growfs set` can change, by the names of the options."""

    def set_peers(sources: tuple[str, ...]) -> None:
        if scheduler.peers is None:
            raise GrowfsError("mounted without --peers; mount again with it")
        scheduler.peers.set_sources(sources)

    return {
        "peers": _at_once(set_peers),
        "cache_size": scheduler.space.set_cache_size,
        "min_free": _at_once(cache.store.set_min_free),
        "rotation": _at_once(rotation.generations.set_rotation),
        "turnover": _at_once(rotation.generations.set_turnover),
        "hold_idle": _at_once(rotation.readers.set_hold_idle),
        "remote_budget": _at_once(cache.budget.set_limit),
        "bandwidth": _at_once(scheduler.dispatcher.set_bandwidth),
        "refresh": _at_once(scheduler.catalog_sync.set_interval),
        "miss_timeout": _at_once(scheduler.fetcher.set_miss_timeout),
        "settle": _at_once(rotation.generations.set_settle),
    }


def _at_once(change: Callable[[Any], None]) -> Setter:
    async def set_option(value: Any) -> None:
        change(value)

    return set_option
