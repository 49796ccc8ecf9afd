"""The composition root: constructs the components of a mount and connects them. Nothing else constructs one."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from growfs.cache.cache_folder import CacheFolder
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.durability import Durability
from growfs.cache.history import History, Sample
from growfs.cache.recovery import recover
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.cache.usage import Budget, UsageCounters
from growfs.daemon.commands import FileCommands, MountCommands, Setter, SettingCheck
from growfs.daemon.control import Command, Control
from growfs.daemon.ending import EndingSteps
from growfs.daemon.option_parsers import listening
from growfs.daemon.options import MountRequest, Options
from growfs.daemon.snapshot import StatusSource
from growfs.daemon.supervisor import Service, Supervisor
from growfs.daemon.virtual_files import virtual_files
from growfs.errors import GrowfsError, UsageError
from growfs.folder.folder_engine import FolderEngine
from growfs.fuse.engine_choice import Engine, EngineChoice
from growfs.fuse.links import LinksEngine
from growfs.fuse.mounting import file_system, is_remote
from growfs.remote.filter import PathFilter
from growfs.remote.interface import RemoteSpec
from growfs.remote.stores.registry import choose_client
from growfs.rotation.division import owner
from growfs.rotation.generations import Demand, Generations
from growfs.rotation.pass_order import Pass
from growfs.rotation.readers import Readers
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.drawer import Drawer, VersionUpdater
from growfs.scheduler.exact import Parts
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import InFlightTable, SizeEstimate
from growfs.scheduler.outage import Outage, probe_in_worker
from growfs.scheduler.peers import Peers, PeerSettings
from growfs.scheduler.prefetcher import Prefetcher
from growfs.scheduler.readiness import PrefetchState, StartCondition, StartGate
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.rotating import DrawOrder, PassOrder, RotationPlanner
from growfs.scheduler.space import Space, WaitingClaims
from growfs.status_and_metrics import MountInfo, MountStatus
from growfs.syscalls import ending_limits
from growfs.units import CacheSize
from growfs.version import __version__
from growfs.vfs.filesystem import Misses, Vfs
from growfs.vfs.pass_names import PassNames
from growfs.vfs.virtual import VirtualFolder
from growfs.workers.pool import WorkerPool

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a mount that the daemon itself needs. Most of them are those of which `status` reports."""

    status: StatusSource
    running: tuple[Service, ...]
    """The components with their own task."""
    ending: EndingSteps
    """What is left to do once they have ended."""
    workers: WorkerPool


def build(request: MountRequest, spec: RemoteSpec, url: str, folder: CacheFolder, workers: WorkerPool) -> Components:
    """Construct and connect the components. If that fails, the cache is left as after a clean stop.

    spec: of the remote. url: without secrets.
    """
    with EndingSteps() as ending:
        return _build(request, spec, url, folder, workers, ending)


def _build(
    request: MountRequest, spec: RemoteSpec, url: str, folder: CacheFolder, workers: WorkerPool, ending: EndingSteps
) -> Components:
    """Construct and connect the components, from the lowest layer up; they take over the steps of `ending`."""

    async def snapshot() -> MountStatus:
        return await status.snapshot()

    options, producer = request.options, spec.producer
    metrics = None
    if options.metrics_addr:
        from growfs.daemon.metrics_server import MetricsServer  # takes 0.1 s

        metrics = MetricsServer(listening("--metrics-addr", *options.metrics_addr), snapshot)
    if options.peer_addr:
        listening("--peer-addr", *options.peer_addr).close()  # fails early; a worker does the listening
    choice = None if request.fills else EngineChoice(options.engine, folder.path, options.allow_other)
    if choice:
        log.info("%s engine: %s", choice.name, choice.reason)
    shows_links = choice is not None and choice.shows_links
    if shows_links and options.allow_other:
        raise UsageError(
            "--allow-other: other users cannot follow links into the cache, which only this user can read; mount as the"
            " user who trains, or with --engine libfuse"
        )

    # The cache. From here on, it counts as crashed until Store.stop.

    database = Database(folder.database)
    ending.add(database.close)
    recover(database, folder.path)
    catalog = Catalog(database, options.freeze)
    store = Store(folder.path, database, catalog, options.cache_size, options.min_free, sees_opens=not shows_links)
    ending.add(store.stop)
    if producer is None or producer.rename is None:  # otherwise the files have other names than in the remote
        given, names = json.dumps([options.include, options.exclude]), PathFilter(options.include, options.exclude)
        for changes in catalog.forget_excluded(names, given):
            store.drop_files(changes)
            store.count_dropped(changes)
    budget = Budget(database, options.remote_budget)
    usage = UsageCounters(database, budget)
    store.admitted.connect(usage.mark_changed)
    budget.changed.connect(store.space_freed.notify)

    # Listed and held files.

    first = Pass(options.seed, 1, options.partition, options.group, freeze=options.freeze)
    peers = _build_peers(options, spec.peer_token, workers, database, catalog, store, first)
    pass_order = PassOrder(workers, catalog, store, folder.partial, first, peers.locate if peers else None)

    parts = None
    if options.exact:
        parts = Parts(
            workers, database, catalog, store, first, options.part_size, options.start,
            lambda *arguments: space.mark(*arguments),  # noqa: PLW0108  # these are created below
            peers.share if peers else None,
            lambda: generations,
            lambda generation: holders.has_open_folder(generation),  # noqa: PLW0108
            lambda: fetcher.miss_timeout_s,
        )  # fmt: skip
    order: DrawOrder = parts or pass_order
    waiting = WaitingClaims()
    generations = Generations(
        database,
        store,
        parts or RotationPlanner(workers, store, database),
        lambda: Demand(order.missing.disk_bytes, waiting.largest, waiting.versions),
        rotation=options.rotation,
        turnover=options.turnover,
        show_files=options.show_files,
        settle_s=options.settle,
        keep=options.kept_generations(request.fills),
        are_asked_for=request.fills,
    )
    readers = Readers(generations, options.hold_idle, usage.recently_opened)
    filled = None
    if request.fills:
        describe = parts.describe if parts else None
        filled = FolderEngine(request.mountpoint, database, catalog, store, usage, generations, describe)
    holders = filled or readers
    for evictable in (holders.released, generations.written):
        evictable.connect(store.space_freed.notify)

    # Fetched files.

    outage = Outage(partial(probe_in_worker, workers, catalog, folder.partial))
    catalog_sync = CatalogSync(workers, catalog, store, outage, options.refresh, spec.is_endless)
    sizes = SizeEstimate(store, varies=producer is not None)
    downloads = InFlightTable(database, catalog, options.group, folder.partial)
    peers_of = peers.holders if peers else lambda path: ()
    space = Space(
        database, store, generations, budget, outage, sizes, waiting, holders.holds,
        peers.awaits if peers else None, peers_of,
    )  # fmt: skip
    client = choose_client(spec)
    if client.uses_library:
        log.info("files are requested by %s: %s", client.name, client.reason)
    dispatcher = Dispatcher(
        workers, options.fetch_processes(spec), options.bandwidth, client, producer is not None, peers_of
    )
    fetcher = Fetcher(
        downloads, store, space, sizes, dispatcher, generations, catalog_sync, outage, options.miss_timeout
    )
    for received in (budget.spend, outage.note_received, fetcher.counters.add_bytes):
        dispatcher.received.connect(received)
    dispatcher.received_from_peers.connect(fetcher.counters.add_peer_bytes)
    dispatcher.returned.connect(fetcher.handle_result)
    dispatcher.failed.connect(outage.suspect)
    outage.began.connect(dispatcher.hold)
    outage.ended.connect(dispatcher.resume)
    outage.ended.connect(catalog_sync.retry)

    # Drawn files, and when training can start.

    condition = StartCondition(
        options.wait_files, options.wait_bytes, options.no_wait, options.list_timeout, options.show_files or 0
    )
    prefetch = PrefetchState(
        condition,
        lambda: order.missing.files <= 0,
        lambda: waiting.is_draw_held and downloads.is_idle,
        outage,
        lambda: parts is not None and parts.streams,
    )
    if parts:
        parts.changed.connect(prefetch.invalidate_order)
        generations.began.connect(parts.note_begun)
        for arrived in (dispatcher.received, dispatcher.received_from_peers):
            arrived.connect(parts.note_received)
        store.replaced.connect(lambda _: catalog_sync.file_changed.notify())  # a new version has another id
        for removed in (catalog_sync.removed, store.replaced):
            removed.connect(parts.note_removed)
    store.returned_to_pass.connect(prefetch.draw_evicted)
    space.rotated.connect(prefetch.note_rotation)
    for more in (space.resized, generations.rotation_changed):
        more.connect(prefetch.invalidate_order)
    outage.began.connect(lambda _: prefetch.changed.notify())
    outage.ended.connect(prefetch.changed.notify)
    for waited_for in (store.space_freed, fetcher.progressed):  # a waiting claim may no longer be wanted
        prefetch.changed.connect(waited_for.notify)
    drawer = Drawer(catalog, store, fetcher, space, sizes, prefetch, peers_of)
    fetcher.finished.connect(order.note_finished)
    fetcher.finished.connect(drawer.handle_finished)
    prefetcher = Prefetcher(catalog, store, catalog_sync, order, fetcher, drawer, space, prefetch)
    catalog_sync.changed.connect(prefetcher.handle_changed_catalog)
    updater = VersionUpdater(catalog, fetcher, catalog_sync, prefetch)
    start = StartGate(catalog, store, catalog_sync, fetcher, budget, prefetch, outage, parts)
    start.opened.connect(dispatcher.move_to_background)
    start.opened.connect(fetcher.progressed.notify)  # nothing is held back for the start any longer
    if not (parts or filled):  # a part never grows, and a folder's first generation begins now
        start.opened.connect(generations.end)
    supervisor = Supervisor(lambda: prefetch.is_started)
    if peers:
        pass_order.computed.connect(peers.note_order)
        drawer.found_room.connect(peers.note_room)
        drawer.drawn.connect(peers.note_drawn)

    # The readers' view.

    virtual = VirtualFolder(virtual_files(folder.database, folder.log, snapshot), folder.partial)
    engine: Engine
    if filled:
        engine, reason, misses, opens = filled, filled.reason, Misses(), filled.opens
        if parts:
            filled.file_opened.connect(parts.note_opened)
    elif choice:
        vfs = Vfs(
            catalog,
            store,
            generations,
            readers,
            virtual,
            fetcher.ensure if options.on_miss == "wait" else None,
            shows_links,
            PassNames(generations, parts.describe, parts.may_exist) if parts else None,
        )
        engine = choice.create(vfs)
        reason, misses, opens = choice.reason, vfs.misses, vfs.opens
        vfs.file_opened.connect(usage.count_open)
        if parts:
            vfs.file_opened.connect(parts.note_opened)
        vfs.name_invalidated.connect(engine.forget_name)
        for removed in (catalog_sync.removed, store.replaced):
            removed.connect(vfs.forget_names)
        store.damaged.connect(vfs.note_damaged)
        store.open_files.descriptor_closed.connect(engine.drop_descriptor)
        if isinstance(engine, LinksEngine):
            store.open_files.descriptor_opened.connect(engine.note_own_open)
            store.leaving.connect(engine.drop_links)
            for removed in (catalog_sync.removed, store.replaced):
                removed.connect(engine.forget_links)

    # The users' view and controls.

    mount = MountInfo(
        version=__version__,
        url=url,
        mountpoint=str(request.mountpoint),
        cache_dir=str(folder.path),
        pid=os.getpid(),
        engine=engine.name,
        engine_reason=reason,
        metrics_url=metrics.url if metrics else None,
        seed=options.seed,
        partition=first.partition,
    )
    settings = {**mount, "options": options.changed()}
    database.write_now(lambda writer: set_meta(writer, "mount", json.dumps(settings)))
    status = StatusSource(
        mount=mount,
        database=database,
        catalog=catalog,
        store=store,
        budget=budget,
        usage=usage,
        generations=generations,
        readers=readers,
        outage=outage,
        catalog_sync=catalog_sync,
        order=order,
        parts=parts,
        fetcher=fetcher,
        prefetch=prefetch,
        prefetcher=prefetcher,
        drawer=drawer,
        start=start,
        peers=peers,
        misses=misses,
        opens=opens,
        engine=engine,
        supervisor=supervisor,
        machine_warnings=[*_cache_warnings(options.cache_dir), *_limit_warnings()],
    )

    def sample() -> Sample:
        """The figures recorded in the history."""
        summary, generation = usage.summary, generations.current
        return Sample(
            state=prefetch.mount_state.value,
            generation=generations.number,
            files=store.resident_files,
            bytes=store.resident_bytes,
            limit_bytes=store.limit_bytes,
            listed_files=generation.files if generation else 0,
            share_files=order.share.files,
            files_seen=summary.files_seen,
            opens=summary.opens,
            fetched_files=fetcher.counters.files,
            fetched_bytes=fetcher.counters.bytes,
            evicted_files=store.evicted_files,
            missed_files=misses.files,
            wait_ms=int(1000 * misses.wait_s),
        )

    def check_peers(_: tuple[str, ...]) -> None:
        if peers is None:
            raise GrowfsError("mounted without --peers; mount again with it")

    def set_peers(sources: tuple[str, ...]) -> None:
        assert peers
        peers.set_sources(sources)

    def check_cache_size(size: CacheSize) -> None:
        if parts:
            parts.check_size(store.limit_of(size))

    history = History(database, sample)
    setters: dict[str, Setter] = {
        "peers": set_peers,
        "min_free": store.set_min_free,
        "rotation": generations.set_rotation,
        "turnover": partial(setattr, generations, "turnover"),
        "hold_idle": partial(setattr, readers, "hold_idle_s"),
        "remote_budget": budget.set_limit,
        "bandwidth": dispatcher.set_bandwidth,
        "refresh": catalog_sync.set_interval,
        "miss_timeout": fetcher.set_miss_timeout,
        "settle": partial(setattr, generations, "settle_s"),
        "cache_size": space.set_cache_size,  # last, as it raises an error if files in use stay in the way
    }
    assert setters.keys() == {row.name for row in fields(Options) if row.metadata["live"]}
    if parts:  # which decide what is listed
        del setters["rotation"], setters["turnover"]
    checks: dict[str, SettingCheck] = {"peers": check_peers, "cache_size": check_cache_size}
    of_mount = MountCommands(status.snapshot, prefetch.pause, readers.release, misses.processes, setters, checks)
    of_files = FileCommands(database, catalog, store, space, fetcher.ensure)
    if parts:  # a part may wait for the room of pinned files
        of_files.pins_changed.connect(prefetch.invalidate_order)
    commands: list[Command] = [
        of_mount.status, of_mount.set, of_mount.pause, of_mount.resume, of_mount.release, of_mount.waiting,
        of_mount.stop, of_files.pin, of_files.unpin, of_files.fetch, of_files.evict, of_files.refetch,
        of_files.complete,
    ]  # fmt: skip
    if filled:
        commands.append(filled.next)
        if parts:
            commands += [filled.part, filled.describe]
    control = Control(folder.path, commands)
    running: list[Service] = [outage, catalog_sync, readers, generations, space, fetcher, prefetcher, updater]
    running += [usage, history, Durability(store), control]
    running += [*([parts] if parts else []), *([metrics] if metrics else []), *([peers] if peers else [])]
    for step in (history.save_now, usage.save_now, folder.note_end, engine.unmount):
        ending.add(step)
    return Components(status, tuple(running), ending.pop_all(), workers)


def _cache_warnings(cache_dir: Path) -> list[str]:
    kind, mountpoint = file_system(cache_dir)
    if not is_remote(kind):
        return []
    return [f"{cache_dir}: is on {mountpoint} ({kind}), which is not a local disk; pass a --cache-dir on one"]


def _limit_warnings() -> list[str]:
    limits = ending_limits()
    return [f"may end the mount, or its downloads: {limits}; raise the hard limit, and mount again"] if limits else []


def _build_peers(
    options: Options,
    token: str | None,
    workers: WorkerPool,
    database: Database,
    catalog: Catalog,
    store: Store,
    first: Pass,
) -> Peers | None:
    if not (options.peers and options.peer_addr and token):
        return None
    settings = PeerSettings(options.peers, options.peer_addr, token, options.peer_bandwidth)
    owns = partial(owner, first.seed, first.group) if options.exact else None
    return Peers(settings, workers, database, catalog, store, first.place, owns)
