"""The composition root: constructs the components of a mount and connects them, and so do features."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from growfs.bitmaps import BitMap64
from growfs.cache.cache_folder import CacheFolder
from growfs.cache.catalog import Catalog
from growfs.cache.database import Database
from growfs.cache.recovery import recover
from growfs.cache.room import SizeEstimate
from growfs.cache.schema import set_meta
from growfs.cache.store import Store
from growfs.cache.usage import Budget, UsageCounters
from growfs.daemon.commands import FileCommands, MountCommands, Setter
from growfs.daemon.control import Command, Control
from growfs.daemon.options import MountRequest, all_rows, flag_name
from growfs.daemon.snapshot import StatusSource
from growfs.daemon.supervisor import EndingSteps, Service, Supervisor
from growfs.daemon.virtual_files import virtual_files
from growfs.errors import GrowfsError
from growfs.extensions import MOUNT
from growfs.fuse.engine_choice import Engine, EngineChoice
from growfs.fuse.mounting import file_system, is_remote
from growfs.remote.filter import PathFilter
from growfs.remote.interface import NO_OTHER, OtherSource, RemoteSpec
from growfs.rotation.generations import Demand, Generations, Planner
from growfs.rotation.pass_order import Pass
from growfs.rotation.reader import Reader
from growfs.rotation.readers import Readers
from growfs.rotation.rules import Generation
from growfs.scheduler.dispatcher import Dispatcher
from growfs.scheduler.fetcher import Fetcher
from growfs.scheduler.in_flight import InFlightTable
from growfs.scheduler.outage import Outage, probe_in_worker
from growfs.scheduler.prefetcher import Drawer, Prefetcher, VersionUpdater
from growfs.scheduler.readiness import PrefetchState, StartCondition, StartGate
from growfs.scheduler.refresh import CatalogSync
from growfs.scheduler.rotating import Rotation, Selection
from growfs.scheduler.space import Space, WaitingClaims
from growfs.signal import Signal
from growfs.status_and_metrics import MountInfo, MountState, MountStatus
from growfs.syscalls import ending_limits
from growfs.version import __version__
from growfs.vfs.filesystem import Misses
from growfs.vfs.virtual import Names, VirtualFolder
from growfs.workers.pool import WorkerPool

log = logging.getLogger(__name__)


class Feature:
    """What an extension adds to a mount: ExactFeature in growfs.extensions.exact.mount, for example."""

    def __init__(self, mount: Wiring) -> None:
        """Open the ports that its options name. Nothing in the cache has been changed yet, and no component exists."""
        self.mount = mount

    @staticmethod
    def check(request: MountRequest) -> None:
        """Raise GrowfsError if this cannot be mounted. Called before the cache is opened."""

    def build(self) -> None:
        """Construct its components, and say what the mount uses instead of its own. Later components do not exist."""

    def connect(self) -> None:
        """Connect its components. All others exist by now, but for the status and the control socket."""


class Holders(Protocol):
    """What knows which files may not be evicted because they are shown: the readers, or a filled folder."""

    @property
    def released(self) -> Signal[[]]:
        """Notified when some may."""

    def holds(self) -> BitMap64:
        """The admissions of these files."""

    def has_open_folder(self, generation: Generation) -> bool:
        """Whether a folder of a generation is open."""


def requested_features(request: MountRequest) -> list[type[Feature]]:
    """The features of a mount, in the order in which they are constructed."""
    given = request.options.by_name()
    return [
        getattr(import_module(f"growfs.extensions.{name}.mount"), f"{name.title()}Feature")
        for name in (request.front_end, *MOUNT)
        if name and given.get(name, True)
    ]


def build(
    request: MountRequest,
    features: Sequence[type[Feature]],
    spec: RemoteSpec,
    url: str,
    folder: CacheFolder,
    workers: WorkerPool,
) -> Wiring:
    """Construct and connect the components of a mount. If that fails, the cache is left as after a clean stop.

    spec: of the remote. url: without secrets.
    """
    with EndingSteps() as ending:
        wiring = Wiring(request, features, spec, url, folder, workers, ending)
        wiring.choose_engine()
        wiring.build_cache()
        wiring.build_listing()
        wiring.build_fetching()
        wiring.build_drawing()
        wiring.build_view()
        wiring.build_controls()
        wiring.ending = ending.pop_all()
        return wiring


class Wiring:
    """Constructs the components of a mount, from the lowest layer up. The methods are called in their order.

    Each builds a layer, and connects it with those below. A lambda looks up a component of a later layer. services: the
    components with their own task. ending: what is left to do once these have ended.
    """

    def __init__(
        self,
        request: MountRequest,
        features: Sequence[type[Feature]],
        spec: RemoteSpec,
        url: str,
        folder: CacheFolder,
        workers: WorkerPool,
        ending: EndingSteps,
    ) -> None:
        self.request, self.options = request, request.options
        self.spec, self.url = spec, url
        self.folder, self.workers, self.ending = folder, workers, ending
        # What features may change before it is used.
        self.select: Callable[[], Selection] = lambda: Rotation(
            workers, self.database, self.catalog, self.store, folder.partial, self.first, self.other_source
        )
        self.hold: Callable[[], Holders] = lambda: self.readers
        self.make_engine: Callable[[], Engine] = self._kernel_engine
        self.show: Callable[[str, Planner], Awaitable[Path]] | None = None
        self.other_source: OtherSource = NO_OTHER
        self.names: Callable[[], Names] | None = None
        self.metrics_url: str | None = None
        # What they may add to.
        self.services = list[Service]()
        self.virtual_files = virtual_files(folder.database, folder.log, self.snapshot)
        self.sections = dict[str, Callable[[], Any]]()
        self.warnings = list[Callable[[list[Reader]], Iterable[str | None]]]()
        self.commands = list[Command]()
        self.features = [feature(self) for feature in features]

    def choose_engine(self) -> None:
        """The engine for the kernel, if there is a mount. Fails early."""
        if not self.request.front_end:
            self.choice = EngineChoice(self.options.engine, self.folder.path, self.options.allow_other)
            log.info("%s engine: %s", self.choice.name, self.choice.reason)

    async def snapshot(self) -> MountStatus:
        return await self.status.snapshot()

    def build_cache(self) -> None:
        """The cache. From here on, it counts as crashed until Store.stop."""
        options = self.options
        self.database = Database(self.folder.database)
        self.ending.add(self.database.close)
        recover(self.database, self.folder.path)
        self.catalog = Catalog(self.database, options.freeze)
        self.store = Store(self.folder.path, self.database, self.catalog, options.cache_size, options.min_free)
        self.ending.add(self.store.stop)
        if self.spec.traits.keeps_names:  # otherwise, the patterns are of other names
            given, names = json.dumps([options.include, options.exclude]), PathFilter(options.include, options.exclude)
            for changes in self.catalog.forget_excluded(names, given):
                self.store.drop_files(changes)
                self.store.count_gone(changes.removed)
        self.budget = Budget(self.database, options.remote_budget)
        self.usage = UsageCounters(self.database, self.budget)
        self.store.admitted.connect(self.usage.mark_changed)
        self.budget.changed.connect(self.store.room.freed.notify)

    def build_listing(self) -> None:
        """Listed and held files."""
        options = self.options
        self.first = Pass(options.seed, 1, options.partition, options.group, freeze=options.freeze)
        for feature in self.features:
            feature.build()
        self.selection = self.select()
        self.waiting = WaitingClaims()
        self.generations = Generations(
            self.database,
            self.store,
            self.selection,
            lambda: Demand(self.selection.missing.disk_bytes, self.waiting.largest, self.waiting.versions),
            rotation=options.rotation,
            turnover=options.turnover,
            show_files=options.show_files,
            settle_s=options.settle,
            keep=options.keep_generations or 1,
        )
        self.readers = Readers(self.generations, options.hold_idle, self.usage.recently_opened)
        self.holders = self.hold()
        for evictable in (self.holders.released, self.generations.written):
            evictable.connect(self.store.room.freed.notify)

    def build_fetching(self) -> None:
        """Fetched files."""
        options, spec = self.options, self.spec
        workers, catalog, store = self.workers, self.catalog, self.store
        self.outage = Outage(partial(probe_in_worker, workers, catalog, self.folder.partial), self.other_source)
        self.catalog_sync = CatalogSync(workers, catalog, store, self.outage, options.refresh, spec.traits.is_endless)
        self.sizes = SizeEstimate(
            store.room, spec.traits.is_computed, store.largest_resident() if spec.traits.is_computed else None
        )
        self.downloads = InFlightTable(self.database, catalog, options.group, self.folder.partial)
        self.space = Space(
            self.database, store, self.generations, self.budget, self.outage, self.sizes, self.waiting,
            self.holders.holds, self.other_source,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            workers, options.workers_max, options.bandwidth, spec.traits.is_computed, self.other_source
        )
        self.fetcher = Fetcher(
            self.downloads, store, self.space, self.sizes, self.dispatcher, self.generations, self.catalog_sync,
            self.outage, options.miss_timeout,
        )  # fmt: skip
        for received in (self.budget.spend, self.outage.note_received, self.fetcher.traffic.add_bytes):
            self.dispatcher.received.connect(received)
        self.dispatcher.received_from_other.connect(self.fetcher.traffic.add_other_bytes)
        self.dispatcher.returned.connect(self.fetcher.handle_result)
        self.dispatcher.failed.connect(self.outage.suspect)
        self.outage.began.connect(self.dispatcher.suspend)
        self.outage.ended.connect(self.dispatcher.resume)
        self.outage.ended.connect(self.catalog_sync.retry)

    def build_drawing(self) -> None:
        """Drawn files, and when training can start."""
        options, catalog, store, selection = self.options, self.catalog, self.store, self.selection
        self.prefetch = PrefetchState(
            StartCondition(
                options.wait_files, options.wait_bytes, options.no_wait, options.list_timeout, options.show_files or 0
            ),
            lambda: selection.missing.files <= 0,
            lambda: self.waiting.is_draw_held and self.downloads.is_idle,
            self.outage,
            lambda: selection.streams,
        )
        store.returned_to_pass.connect(self.prefetch.draw_evicted)
        self.space.rotated.connect(partial(self.prefetch.enter, MountState.ROTATING))
        for more in (self.space.resized, self.generations.rotation_changed):
            more.connect(self.prefetch.invalidate_order)
        self.outage.began.connect(lambda _: self.prefetch.changed.notify())
        self.outage.ended.connect(self.prefetch.changed.notify)
        for waited_for in (store.room.freed, self.fetcher.progressed):  # a waiting claim may no longer be wanted
            self.prefetch.changed.connect(waited_for.notify)
        self.drawer = Drawer(catalog, store, self.fetcher, self.space, self.sizes, self.prefetch, self.outage)
        self.fetcher.finished.connect(selection.note_finished)
        self.fetcher.finished.connect(self.drawer.handle_finished)
        self.prefetcher = Prefetcher(
            catalog, store, self.catalog_sync, selection, self.fetcher, self.drawer, self.space, self.prefetch
        )
        self.catalog_sync.changed.connect(self.prefetcher.handle_changed_catalog)
        self.updater = VersionUpdater(catalog, self.fetcher, self.catalog_sync, self.prefetch)
        self.start = StartGate(
            catalog, store, self.catalog_sync, self.fetcher, self.budget, self.prefetch, self.outage, selection
        )
        self.start.opened.connect(self.dispatcher.move_to_background)
        self.start.opened.connect(self.fetcher.progressed.notify)  # nothing is held back for the start any longer
        self.supervisor = Supervisor(lambda: self.prefetch.is_started)

    def build_view(self) -> None:
        """The readers' view."""
        self.misses = Misses()
        self.engine = self.make_engine()

    def _kernel_engine(self) -> Engine:
        vfs = self.choice.view(
            self.catalog,
            self.store,
            self.generations,
            self.readers,
            self.usage,
            self.misses,
            VirtualFolder(self.virtual_files, self.folder.partial),
            self.fetcher.ensure if self.options.on_miss == "wait" else None,
            self.names() if self.names else None,
        )
        self.engine_reason = self.choice.reason
        if not self.selection.shows_once:  # earlier listings showed fewer files
            self.start.opened.connect(self.generations.end)
        engine = self.choice.create(vfs)
        vfs.name_invalidated.connect(engine.forget_name)
        for removed in (self.catalog_sync.removed, self.store.replaced):
            removed.connect(vfs.forget_names)
            removed.connect(engine.forget_files)
        self.store.damaged.connect(vfs.note_damaged)
        self.store.open_files.descriptor_closed.connect(engine.drop_descriptor)
        return engine

    def build_controls(self) -> None:
        """The users' view and controls."""
        self.setters = self._setters()
        self.file_commands = FileCommands(
            self.database, self.catalog, self.store, self.space, self.outage, self.fetcher.ensure
        )
        for feature in self.features:
            feature.connect()
        mount = MountInfo(
            version=__version__,
            url=self.url,
            mountpoint=str(self.request.mountpoint),
            cache_dir=str(self.folder.path),
            pid=os.getpid(),
            engine=self.engine.name,
            engine_reason=self.engine_reason,
            metrics_url=self.metrics_url,
            seed=self.options.seed,
            partition=self.first.partition,
        )
        settings = json.dumps({**mount, "options": self.options.changed()})
        self.database.write_now(lambda writer: set_meta(writer, "mount", settings))
        machine_warnings = [_cache_warning(self.options.cache_dir), _limit_warning()]
        self.status = StatusSource(
            mount, self.database, self.catalog, self.store, self.usage, self.generations, self.readers, self.selection,
            self.drawer,
            sections={
                "ready": lambda: self.prefetch.is_started,
                "waited_for": lambda: self.start.waited_for,
                "start": self.start.status,
                "state": lambda: self.prefetch.mount_state,
                "outage": self.outage.status,
                "remote": self.catalog_sync.status,
                "fetch": lambda: self.fetcher.status(self.prefetcher.eta_s()),
                "miss": self.misses.status,
                "budget": self.budget.status,
                "opens": self.usage.status,
                "requests": lambda: dict(self.engine.requests),
                "unpromised": lambda: self.prefetch.unpromised,
                "last_error": lambda: str(failure.error) if (failure := self.prefetcher.last_failure) else None,
                "last_error_at": lambda: failure.at if (failure := self.prefetcher.last_failure) else None,
                **self.sections,
            },
            warnings=[
                lambda _: machine_warnings,
                lambda _: self.supervisor.warnings,
                lambda _: self.prefetcher.warnings,
                *self.warnings,
                lambda _: [self.store.open_files.warning, self.engine.warning],
            ],
        )  # fmt: skip
        control = Control(self.folder.path, [*self._commands(), *self.commands])
        for step in (self.usage.save_now, self.folder.note_end, self.engine.unmount):
            self.ending.add(step)
        self.services += [self.outage, self.catalog_sync, self.readers, self.generations, self.space]
        self.services += [self.fetcher, self.prefetcher, self.updater, self.usage, self.store, control]

    def _commands(self) -> list[Command]:
        of_mount = MountCommands(
            self.status.snapshot, self.prefetch.pause, self.readers.release, self.misses.processes, self.setters,
            {"cache_size": lambda size: self.selection.check_size(self.store.room.limit_of(size))},
        )  # fmt: skip
        return [
            of_mount.status, of_mount.set, of_mount.pause, of_mount.resume, of_mount.release, of_mount.waiting,
            of_mount.stop, self.file_commands.pin, self.file_commands.unpin, self.file_commands.fetch,
            self.file_commands.evict, self.file_commands.refetch, self.file_commands.complete,
        ]  # fmt: skip

    def _setters(self) -> dict[str, Setter]:
        setters: dict[str, Setter] = {
            "min_free": partial(setattr, self.store.room, "min_free"),
            "rotation": self.generations.set_rotation,
            "turnover": partial(setattr, self.generations, "turnover"),
            "hold_idle": partial(setattr, self.readers, "hold_idle_s"),
            "remote_budget": self.budget.set_limit,
            "bandwidth": self.dispatcher.set_bandwidth,
            "refresh": self.catalog_sync.set_interval,
            "miss_timeout": partial(setattr, self.fetcher, "miss_timeout_s"),
            "settle": partial(setattr, self.generations, "settle_s"),
            "cache_size": self.space.set_cache_size,  # last, as it raises an error if files in use stay in the way
        }
        live = {name for name, row in all_rows().items() if row.metadata["live"]}
        assert setters.keys() == live & vars(self.options).keys()
        # Those of features come first, as they may raise an error.
        return {name: partial(_refuse, name) for name in live - setters.keys()} | setters


def _refuse(name: str, _: object) -> None:
    raise GrowfsError(f"mounted without {flag_name(name)}; mount again with it")


def _cache_warning(cache_dir: Path) -> str | None:
    kind, mountpoint = file_system(cache_dir)
    text = f"{cache_dir}: is on {mountpoint} ({kind}), which is not a local disk; pass a --cache-dir on one"
    return text if is_remote(kind) else None


def _limit_warning() -> str | None:
    limits = ending_limits()
    return f"may end the mount, or its downloads: {limits}; raise the hard limit, and mount again" if limits else None
