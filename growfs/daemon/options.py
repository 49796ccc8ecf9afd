"""The table of mount options. Flags, the keys of --config, environment variables and help texts are made from it.

The flag --cache-size is the key cache-size in a TOML file and the variable GROWFS_CACHE_SIZE. A flag overrides the
environment, and the environment overrides the file. Extensions have rows of their own in the table.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from platformdirs import user_cache_path

from growfs.daemon.option_parsers import (
    group,
    one_of,
    partition,
    size_or_percentage,
    storage_option,
    web_url,
)
from growfs.errors import UsageError
from growfs.extensions import MOUNT, REMOTE
from growfs.paths import absolute_path, shown_path
from growfs.remote.interface import RemoteSpec
from growfs.remote.names import redact
from growfs.units import CacheSize, format_size, format_timespan, fraction_of, parsed, positive, rate, seconds, size
from growfs.units import count as whole

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def option(
    default: Any,
    parse: Callable[[str], Any],
    metavar: str,
    text: str,
    live: bool = False,
    group: str | None = None,
    affects_node: bool = False,
) -> Any:
    """A row of the table. default: as text, or None. live: `growfs set` can change it. group: begins with it.

    affects_node: it names files of this machine, runs code on it, serves its network, or fills its disk.
    """
    return field(
        default=None,
        metadata={
            "default": default, "parse": parse, "metavar": metavar, "help": text, "live": live, "group": group,
            "affects_node": affects_node,
        },
    )  # fmt: skip


def choice(words: str, text: str, live: bool = False, group: str | None = None) -> Any:
    """An option that accepts only some words, such as auto|never. The first one is the default."""
    accepted = words.split("|")
    return option(accepted[0], one_of(*accepted), words, text, live, group)


def flag(text: str, group: str | None = None) -> Any:
    """A flag, which has no value."""
    return field(
        default=False, metadata={"parse": bool, "help": text, "live": False, "group": group, "affects_node": False}
    )


def repeatable(parse: Callable[[str], Any], metavar: str, text: str, affects_node: bool = False) -> Any:
    """An option that may be given more than once."""
    return field(
        default=(),
        metadata={
            "parse": parse, "metavar": metavar, "help": text, "repeatable": True, "live": False, "group": None,
            "affects_node": affects_node,
        },
    )  # fmt: skip


DEFAULT_CACHE_DIR = shown_path(user_cache_path("growfs"))
GROUPS = ("Basics", "Start", "Store", "Rotation", "Whole epochs", "Several nodes", "Producers and archives", "Advanced")
"""The groups in which people see the options. In each, those of extensions come last."""


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """The rows of an extension: ExactOptions in growfs.extensions.exact.options, for example. That imports little."""

    def check(self, options: Options, url: str) -> None:
        """Raise UsageError if they contradict one another, other options or the URL."""

    def remote(self, spec: RemoteSpec, options: Options, folder: Path) -> RemoteSpec:
        """The remote as they change it, once all are checked. folder: as for `Options.remote`."""
        return spec


F = TypeVar("F", bound=FeatureOptions)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one mount. None: not given."""

    cache_dir: Path = option(
        DEFAULT_CACHE_DIR, absolute_path, "DIR", "Directory for the cached files.", group="Basics", affects_node=True
    )
    cache_size: CacheSize = option(
        "80%",
        size_or_percentage,
        "SIZE",
        "Maximum size of the cache on disk: 500GB, 20GiB, or a percentage of the free space.",
        live=True,
    )
    bandwidth: int = option("0", rate, "RATE", "Maximum download rate, such as 200MB/s; 0: no limit.", live=True)
    include: tuple[str, ...] = repeatable(str, "GLOB", "Mount only files that match (.gitignore syntax).")
    exclude: tuple[str, ...] = repeatable(str, "GLOB", "Skip files that match (.gitignore syntax).")
    freeze: tuple[str, ...] = repeatable(
        str,
        "GLOB",
        "Fetch matching files first, such as a validation set, and never evict them; mount waits for them.",
    )

    wait_files: int | None = option(None, whole, "N", "Return as soon as N files are cached.", group="Start")
    wait_bytes: int | None = option(None, size, "SIZE", "Return as soon as SIZE bytes are cached.")
    no_wait: bool = flag("Return at once, even if no file is cached.")
    list_timeout: float = option(
        "60s", seconds, "TIME", "If listing the remote takes longer than this, start with an incomplete listing."
    )

    endpoint_url: str | None = option(
        None, web_url, "URL", "URL of the store's server, for S3-compatible stores.", group="Store"
    )
    anon: bool = flag("Access a public bucket without credentials.")
    storage_option: tuple[tuple[str, Any], ...] = repeatable(
        storage_option,
        "NAME=VALUE",
        "Option for the store's fsspec filesystem; dots nest: client_kwargs.region_name=eu-west-1.",
        affects_node=True,
    )
    client: str = choice(
        "auto|growfs|library",
        "Client that requests the files: growfs itself (faster) or the store's library, such as s3fs. auto: growfs"
        " if it supports the store.",
    )

    rotation: str = choice(
        "auto|never|always",
        "When listed files may be evicted. auto: once no process holds them; always: once their reader has opened them"
        " all; never: not at all.",
        live=True,
        group="Rotation",
    )
    turnover: float = option(
        "20%",
        fraction_of,
        "FRACTION",
        "Fraction of a full cache that each generation replaces; proportionally less if only some files were opened.",
        live=True,
    )
    group: str | None = option(
        None,
        group,
        "KEY",
        "Keep files with the same key together: '{stem}' pairs x.jpg with x.json. A template, the name of a layout, or"
        " a regular expression.",
    )
    seed: int = option("0", whole, "N", "Seed of the random order in which files are fetched.")
    hold_idle: float = option(
        "1h", seconds, "TIME", "End the holds of a process that has had no file open for this long.", live=True
    )
    settle: float = option(
        "60s",
        seconds,
        "TIME",
        "How long a program that opens few or no files keeps seeing the same generation.",
        live=True,
    )
    keep_generations: int | None = option(
        None,
        positive,
        "N",
        "Number of newest generations to keep even if no process holds them; by default 1, or 2 with growfs fill.",
    )

    partition: tuple[int, int] | None = option(
        None,
        partition,
        "I/N",
        "Prefetch only share I of N of the files, one share per node. auto reads I and N from the environment of"
        " torchrun, Slurm or Open MPI.",
        group="Several nodes",
    )
    show_files: int | None = option(
        None, positive, "N", "List exactly N files in every generation, so that all nodes list the same number."
    )

    engine: str = choice(
        "auto|passthrough|links|libfuse",
        "How files are read: by the kernel (passthrough; root, Linux 6.9), through links into the cache (links; no"
        " root needed), or through the daemon (libfuse).",
        group="Advanced",
    )
    allow_other: bool = flag("Let other users read the mount (always on when root mounts).")
    on_miss: str = choice(
        "wait|error",
        "What open() does if the file is not cached (a miss): wait until it is fetched, or fail with ENOENT.",
    )
    miss_timeout: float = option("300s", seconds, "TIME", "Maximum time that open() waits on a miss.", live=True)
    refresh: float = option("1h", seconds, "TIME", "Interval between listings of the remote; 0: list once.", live=True)
    min_free: int = option(
        "1GiB", size, "SIZE", "Free disk space to leave for other programs.", live=True, affects_node=True
    )
    remote_budget: int = option(
        "0",
        size,
        "SIZE",
        "Stop prefetching after this much traffic in a day (UTC). Files are still fetched when opened. 0: no limit.",
        live=True,
    )
    workers: int | None = option(
        None,
        positive,
        "N",
        "Maximum number of worker processes; by default one per core. Downloads use as few as keep the link busy.",
    )

    features: tuple[FeatureOptions, ...] = ()
    """Those of the extensions."""

    @classmethod
    def parse(cls, given: dict[str, Any]) -> Options:
        """Options from text by field name (lists of text for repeatable ones). Missing ones get their defaults."""
        if unknown := sorted(set(given) - all_rows().keys()):
            raise UsageError(f"no such option: {', '.join(unknown)}; growfs mount --help lists the options")
        features = tuple(table(**_parsed(table, given)) for table in _of_features())
        options = cls(**_parsed(cls, given), features=features)
        if options.no_wait and (options.wait_files is not None or options.wait_bytes is not None):
            raise UsageError("--no-wait cannot be used with --wait-files or --wait-bytes")
        return options

    def of(self, table: type[F]) -> F:
        """The options of an extension."""
        return next(each for each in self.features if isinstance(each, table))

    def by_name(self) -> dict[str, Any]:
        """All options, with those of the extensions."""
        return {name: value for table in (self, *self.features) for name, value in vars(table).items()}

    def changed(self) -> dict[str, str]:
        """The options that differ from their defaults, by flag, as text for people, without secrets."""
        values = self.by_name()
        return {
            flag_name(name): _text(row, values[name])
            for name, row in all_rows().items()
            if values[name] != parse_value(row, None)
        }

    def remote(self, url: str, folder: Path = Path("/")) -> RemoteSpec:
        """What is needed to open the remote. folder: the working directory of the caller, to find a producer in.

        Raises UsageError if the options contradict the URL, or one another.
        """
        for feature in self.features:
            feature.check(self, url)
        spec = RemoteSpec(
            url=url,
            storage_options=nested(self.storage_option),
            endpoint_url=self.endpoint_url,
            anon=self.anon,
            client=self.client,
            include=self.include,
            exclude=self.exclude,
            identity=(self.endpoint_url, None),
        )
        for feature in self.features:
            spec = feature.remote(spec, self, folder)
        return spec

    @property
    def workers_max(self) -> int:
        """The maximum number of worker processes that fetch."""
        return self.workers or len(os.sched_getaffinity(0))


def refuse(see: str, *rows: tuple[object, str]) -> None:
    """Raise UsageError with the message of the first row that is true. see: what follows each message."""
    for is_wrong, message in rows:
        if is_wrong:
            raise UsageError(f"{message}{see}")


@cache
def _of_features() -> tuple[type[FeatureOptions], ...]:
    """The options of the extensions that have any."""
    return tuple(
        getattr(import_module(module), f"{name.title()}Options")
        for name in (*MOUNT, *REMOTE)
        if find_spec(module := f"growfs.extensions.{name}.options")
    )


@cache
def all_rows() -> dict[str, Field[Any]]:
    """The whole table, by name."""
    groups: dict[str, list[Field[Any]]] = {group: [] for group in GROUPS}
    group = GROUPS[0]
    tables: tuple[type[Options | FeatureOptions], ...] = (Options, *_of_features())
    for row in (row for table in tables for row in fields(table) if row.metadata):
        group = row.metadata["group"] or group
        groups[group].append(row)
    return {row.name: row for rows in groups.values() for row in rows}


class MountRequest(NamedTuple):
    """What a daemon is to mount, and where."""

    url: str
    """Absolute."""
    mountpoint: Path
    options: Options
    folder: Path
    """The working directory of the caller."""
    front_end: str | None = None
    """The extension that shows the files at the mountpoint, instead of a mount."""

    def remote(self) -> RemoteSpec:
        """What is needed to open the remote. Raises UsageError as `Options.remote`."""
        return self.options.remote(self.url, self.folder)


def _parsed(table: type[Options | FeatureOptions], given: dict[str, Any]) -> dict[str, Any]:
    """The options of a part of the table by field name, from text."""
    return {row.name: parse_value(row, given.get(row.name)) for row in fields(table) if row.metadata}


def parse_value(row: Field[Any], value: Any) -> Any:
    """The value of an option from text, or its default for None. Raises UsageError that names the flag."""
    if value is None:
        value = row.metadata.get("default", row.default)
    if value is None:
        return None
    if isinstance(value, bool) != (row.default is False):
        wanted = "true or false" if row.default is False else row.metadata["metavar"]
        raise UsageError(f"{flag_name(row.name)}: {value!r}: expected {wanted}")
    if isinstance(value, bool):
        return value
    flag, parse = flag_name(row.name), row.metadata["parse"]
    if row.metadata.get("repeatable"):
        texts = value if isinstance(value, (list, tuple)) else [value]
        return tuple(parsed(flag, parse, str(text)) for text in texts)
    return parsed(flag, parse, str(value))


def _text(row: Field[Any], value: Any) -> str:
    """The value of an option, as a person would write it. Those of --storage-option may be secrets."""
    if row.name == "storage_option":
        return ", ".join(name for name, _ in value)
    if value is True:
        return "yes"
    if isinstance(value, tuple):
        return ("/" if "/" in row.metadata["metavar"] else ", ").join(map(str, value))
    if isinstance(value, CacheSize):
        return f"{value.share:.0%}" if value.bytes is None else format_size(value.bytes)
    formats: dict[Any, Callable[[Any], str]] = {
        size: format_size,
        rate: lambda bytes_per_s: f"{format_size(bytes_per_s)}/s",
        seconds: format_timespan,
        fraction_of: "{:.0%}".format,
    }
    return redact(formats.get(row.metadata["parse"], str)(value))


def flag_name(name: str) -> str:
    """The flag of a field, such as --cache-size."""
    return "--" + name.replace("_", "-")


def nested(pairs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """{'a': {'b': 1}} for a.b=1."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        *parents, last = name.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise UsageError(f"--storage-option: {name}: {parent} already has a value")
        inner[last] = value
    return result


def read_file(path: Path) -> dict[str, Any]:
    """The options in a TOML file, by field name. Raises UsageError if the file has an unknown key."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:  # no TOML, or no UTF-8
        raise UsageError(f"--config {path}: {error}") from None
    given = {key.replace("-", "_"): value for key, value in content.items()}
    if unknown := sorted(given.keys() - all_rows().keys()):
        names, known = (", ".join(flag_name(name)[2:] for name in each) for each in (unknown, all_rows()))
        raise UsageError(f"--config {path}: no such option: {names}; the options are {known}")
    if isinstance(table := given.get("storage_option"), dict):
        given["storage_option"] = storage_option_texts(table)
    return given


def storage_option_texts(table: Mapping[str, Any]) -> list[str]:
    """Storage options by name, as texts for --storage-option. Raises UsageError for a value that JSON does not have."""
    texts = []
    for name, value in table.items():
        try:
            texts.append(f"{name}={json.dumps(value)}")
        except (TypeError, ValueError):
            raise UsageError(
                f"--storage-option {name}: is a {type(value).__name__}; must be text, a number, true, false, a list or"
                " a table"
            ) from None
    return texts
