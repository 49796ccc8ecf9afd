"""The composition root: constructs the components of a mount and connects them. Nothing else constructs one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from growfs.cache.budget import Budget
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.directory import CacheFolder
from growfs.cache.recovery import recover
from growfs.cache.store import Store
from growfs.cache.usage import UsageCounters
from growfs.daemon.commands import FileCommands, MountCommands, Setter, limit_bytes, set_cache_size
from growfs.daemon.control import Control
from growfs.daemon.options import Request
from growfs.daemon.parsers import CacheSize
from growfs.daemon.status import Figures, MountInfo, Status
from growfs.daemon.virtual_files import RecentLog, virtual_files
from growfs.fuse.engine import Engine, EngineChoice
from growfs.rotation.draw_order import Pass
from growfs.rotation.eviction import Evictor
from growfs.rotation.generations import Generations, TurnoverPolicy
from growfs.rotation.registry import ReaderRegistry
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.drawer import Drawer
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.groups import Groups
from growfs.scheduler.in_flight import InFlightTable
from growfs.scheduler.order import PassOrder, plan_in_worker
from growfs.scheduler.prefetch import Prefetcher
from growfs.scheduler.readiness import PrefetchState, StartCondition
from growfs.scheduler.refresh import CatalogSync, VersionUpdater
from growfs.scheduler.size_estimate import SizeEstimate
from growfs.scheduler.startup import StartGate
from growfs.vfs.filesystem import Vfs
from growfs.vfs.virtual import VirtualFolder
from growfs.workers.pool import WorkerPool


class Service(Protocol):
    """Does its work until it is cancelled."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Components:
    """The rooms of a running mount that it needs by name. running: those with a task of their own."""

    database: Database
    catalog: Catalog
    store: Store
    usage: UsageCounters
    start: StartGate
    status: Status
    engine: Engine
    running: tuple[Service, ...]


def build(request: Request, url: str, folder: CacheFolder, workers: WorkerPool, recent: RecentLog) -> Components:
    """Construct the rooms, from the bottom up."""
    options = request.options
    database = Database(folder.database)
    recover(database, folder.path)
    catalog = Catalog(database, options.freeze)
    store = Store(folder.path, database, catalog, options.min_free)
    store.limit_bytes = limit_bytes(options.cache_size, store)
    budget = Budget(database, options.remote_budget)
    usage = UsageCounters(database, budget)
    rotates = options.rotation != "never"
    decide = partial(plan_in_worker, workers, database.path)
    policy = TurnoverPolicy(rotates, options.turnover, options.show_files)
    generations = Generations(database, catalog, store, policy, decide)
    to_the_end = options.rotation == "always"
    readers = ReaderRegistry(generations, options.settle, options.hold_idle, to_the_end, usage.recently_opened)
    evictor = Evictor(database, store, generations, readers.holds)
    catalog_sync = CatalogSync(workers, catalog, store, options.refresh, request.remote.is_endless)
    made = request.remote.producer is not None
    sizes = SizeEstimate(varies=made)
    if made and (size := store.largest_resident()) is not None:
        sizes.learn(size)
    downloads = InFlightTable(catalog, Groups(catalog, options.group), folder.partial, sizes)
    dispatcher = Dispatcher(workers, request.processes, options.bandwidth, made)
    fetcher = Fetcher(downloads, store, evictor, dispatcher, catalog_sync.update_file, options.miss_timeout)
    condition = StartCondition(
        options.wait_files, options.wait_bytes, options.no_wait, options.list_timeout, options.show_files or 0
    )
    prefetch = PrefetchState(condition, lambda: store.resident_files >= catalog.share.files)
    drawer = Drawer(catalog, store, fetcher, evictor, budget, prefetch)
    order = PassOrder(workers, catalog, folder.partial, Pass(options.seed, 1, options.partition, options.group))
    prefetcher = Prefetcher(catalog, store, catalog_sync, order, drawer, prefetch)
    updater = VersionUpdater(catalog, fetcher, catalog_sync, lambda: prefetch.paused, prefetch.changed)
    start = StartGate(catalog, store, catalog_sync, fetcher, budget, prefetch)
    store.admitted.connect(usage.mark_changed)
    store.returned_to_pass.connect(prefetch.draw_evicted)
    dispatcher.received.connect(budget.spend)
    for more_room in (readers.released, generations.written):
        more_room.connect(store.space_freed.notify)
    rows = virtual_files(folder.database, lambda: status.snapshot(), recent)  # noqa: PLW0108 - bound below
    virtual = VirtualFolder(rows, folder.partial)
    vfs = Vfs(catalog, store, readers, virtual, fetcher.ensure if options.on_miss == "wait" else None)
    vfs.file_opened.connect(usage.count_open)
    choice = EngineChoice(options.engine, folder.partial)
    engine = choice.create(vfs)
    for gone in (catalog_sync.removed, store.replaced):
        gone.connect(vfs.forget_names)
    vfs.name_invalidated.connect(engine.forget_name)
    mount = MountInfo(url, str(request.mountpoint), str(folder.path), os.getpid(), engine.name, choice.reason)
    figures: dict[str, Callable[[], Figures]] = {
        "prefetch": prefetcher.figures,
        "remote": catalog_sync.figures,
        "cache": store.figures,
        "fetch": fetcher.figures,
        "evict": store.evict_figures,
        "miss": vfs.misses.figures,
        "budget": budget.figures,
        "requests": engine.requests.copy,
    }
    status = Status(mount, database, generations, readers, usage, figures)

    async def cache_size(size: CacheSize) -> None:
        await set_cache_size(store, evictor, size)
        prefetch.invalidate_order()

    async def refresh(interval_s: float) -> None:
        catalog_sync.set_interval(interval_s)

    async def rotation(when: str) -> None:
        readers.rotation = when
        prefetch.invalidate_order()

    async def remote_budget(limit: int | None) -> None:
        budget.limit = limit
        store.space_freed.notify()

    setters: dict[str, Setter] = {
        "cache_size": cache_size,
        "min_free": _attribute(store, "min_free"),
        "rotation": rotation,
        "turnover": _attribute(generations, "share"),
        "hold_idle": _attribute(readers, "hold_idle_s"),
        "remote_budget": remote_budget,
        "bandwidth": _attribute(dispatcher, "bytes_per_s"),
        "refresh": refresh,
        "miss_timeout": _attribute(fetcher, "miss_timeout_s"),
        "settle": _attribute(readers, "settle_s"),
    }
    commands = MountCommands(status.snapshot, prefetch.pause, readers.release, setters).table()
    commands |= FileCommands(database, catalog, store, evictor, fetcher.ensure).table()
    control = Control(folder.path, commands)
    running = (catalog_sync, readers, generations, fetcher, prefetcher, updater, usage, control)
    return Components(database, catalog, store, usage, start, status, engine, running)


def _attribute(component: object, name: str) -> Setter:
    """A setter that assigns to an attribute."""
    assert hasattr(component, name), f"{component} has no {name}"

    async def assign(value: Any) -> None:
        setattr(component, name, value)

    return assign
