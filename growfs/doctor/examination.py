"""`Examination`: all checks in order, and what they have found as a value for --json."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from humanfriendly import format_size, format_timespan

from growfs.cache.cache_folder import folder_name
from growfs.daemon.launch import check_apart, check_function
from growfs.daemon.option_parsers import absolute
from growfs.daemon.options import MountRequest, Options
from growfs.doctor.cache_disk import CacheDisk
from growfs.doctor.check import SCRATCH, Check, Level, Listing, MeasuredDownload, RemoteToTry, attempt, ok, warning
from growfs.doctor.machine import check_engine, check_machine
from growfs.doctor.outlook import Outlook, check_outlook
from growfs.doctor.remote import Found, check_remote
from growfs.errors import GrowfsError, UsageError
from growfs.fuse.mounting import check_mountpoint, check_outside
from growfs.remote.interface import RemoteSpec
from growfs.remote.names import redact
from growfs.units import seconds

FETCH_BYTES_MAX = 4 << 30
"""Bytes that are fetched to measure the link, at most."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each rate is measured, and how long a server may take to answer; in seconds."""

    measure_s: float
    answer_s: float

    @classmethod
    def parse(cls, measure: str, timeout: str) -> Effort:
        """From the values of the flags. Raises UsageError that names the flag."""
        try:
            flag = "--measure"
            measure_s = seconds(measure)
            flag = "--timeout"
            return cls(measure_s, seconds(timeout))
        except UsageError as error:
            raise UsageError(f"doctor: {flag}: {error}") from None


class Examination:
    """Runs the checks. checks: those that ran, by section. url: None to examine the machine and the cache only.

    on_phase: called with what begins, where it may take a while.
    """

    def __init__(
        self,
        url: str | None,
        mountpoint: Path | None,
        options: Options,
        effort: Effort,
        on_phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raises UsageError if the options contradict each other or the URL."""
        self.checks: dict[str, list[Check]] = {}
        self._options, self._mountpoint, self._effort, self._on_phase = options, mountpoint, effort, on_phase
        self._request: MountRequest | None = None
        if url is not None:
            self._request = MountRequest(absolute(url), mountpoint or Path(), options, Path.cwd())
        self._cache = CacheDisk(options, _folder_name(self._request) if self._request else None)
        self._engine = ""
        self._listing: Listing | None = None
        self._download: MeasuredDownload | None = None
        self._outlook = Outlook()

    def run(self) -> Generator[tuple[str, Check], None, None]:
        """Each check as soon as it is made, with its section."""
        sections: dict[str, Callable[[], Iterator[Check]]] = {
            "machine": lambda: check_machine(self._options.allow_other),
            f"cache {self._options.cache_dir}": self._check_cache,
        }
        if self._request:
            sections[f"remote {redact(self._request.url)}"] = self._check_remote
            sections["what to expect"] = self._check_outlook
        for section, checks in sections.items():
            self.checks[section] = []
            for check in checks():
                self.checks[section].append(check)
                yield section, check

    def named(self, level: Level) -> list[str]:
        """The names of the checks with this result."""
        return [check.name for checks in self.checks.values() for check in checks if check.level is level]

    def report(self) -> dict[str, Any]:
        """The result for --json: what was checked, measured and expected. Sizes in bytes, times in seconds."""
        checks = [
            {"section": section.partition(" ")[0] if section != "what to expect" else "outlook"}
            | asdict(check)
            | {"level": check.level.value}
            for section, found in self.checks.items()
            for check in found
        ]
        download = self._download
        return {
            "ok": not self.named(Level.FAILURE),
            "engine": self._engine or None,
            "checks": checks,
            "disk": asdict(self._cache.disk) if self._cache.usable else None,
            "listing": self._listing and asdict(self._listing),
            "download": download and asdict(download) | {"bytes_per_s": download.bytes_per_s},
            "outlook": asdict(self._outlook),
        }

    def _check_cache(self) -> Iterator[Check]:
        if self._effort.measure_s:
            self._on_phase(f"writing and reading below {self._cache.folder}")
        yield from self._cache.checks(self._effort.measure_s)
        if self._cache.usable and not self.named(Level.FAILURE):
            check, self._engine = check_engine(self._options.engine, self._cache.folder)
            yield check
        if self._mountpoint:
            yield attempt("mountpoint", self._check_mountpoint, f"{self._mountpoint} is an empty folder")

    def _check_mountpoint(self) -> None:
        assert self._mountpoint
        check_mountpoint(self._mountpoint)
        check_outside(self._mountpoint, "--cache-dir", self._options.cache_dir)

    def _check_remote(self) -> Iterator[Check]:
        request = self._request
        assert request
        spec = request.remote
        try:
            check_apart(request.url, self._options.cache_dir, *([self._mountpoint] if self._mountpoint else []))
            check_function(self._options.members)
            place = self._cache.folder if self._cache.usable else None
            scratch = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=place)
        except GrowfsError as error:
            yield Check.failed("remote", error)
            return
        except OSError as error:
            yield Check(Level.FAILURE, "remote", f"not tried: no temporary folder ({error})", "set TMPDIR to one")
            return
        with scratch as folder, closing(self._try(spec, Path(folder))) as findings:
            for found in findings:
                if isinstance(found, Listing):
                    self._listing = found
                    yield _describe_listing(found, spec.is_endless)
                elif isinstance(found, MeasuredDownload):
                    self._download = replace(found, processes=request.processes if spec.producer else 1)
                    yield _describe_download(self._download)
                else:
                    yield found

    def _try(self, spec: RemoteSpec, folder: Path) -> Generator[Found, None, None]:
        measure_s = self._effort.measure_s
        probe = RemoteToTry(
            replace(spec, cache=folder),
            folder,
            room=min(FETCH_BYTES_MAX, self._cache.spare),
            list_s=measure_s,
            download_s=measure_s if self._cache.usable else 0.0,
            bytes_per_s=self._options.bandwidth,
        )
        return check_remote(probe, self._effort.answer_s, self._on_phase)

    def _check_outlook(self) -> Iterator[Check]:
        if self._listing is None or not self._cache.usable:
            return
        for found in check_outlook(self._options, self._cache.disk, self._listing, self._download):
            if isinstance(found, Outlook):
                self._outlook = found
            else:
                yield found


def _folder_name(request: MountRequest) -> str:
    return folder_name(request.remote, redact(request.url))


def _describe_listing(listing: Listing, is_endless: bool) -> Check:
    if is_endless:
        return ok("listing", "endless: as many files as are wanted")
    sizes = f", {format_size(listing.bytes)}" if listing.bytes else ""
    count = "1 file" if listing.files == 1 else f"{listing.files:,} files"
    rate = f"in {_seconds(listing.s)} ({listing.files / max(listing.s, 1e-3):,.0f}/s)"
    if listing.whole:
        return ok("listing", f"{count}{sizes}, {rate}")
    return ok("listing", f"{count}{sizes} and more, {rate}; stopped there")


def _describe_download(download: MeasuredDownload) -> Check:
    if not download.bytes and download.first_s is None:
        return warning("download", f"no byte within {_seconds(download.s)}", "measure for longer: --measure 10s")
    count = "1 file" if download.files == 1 else f"{download.files:,} files"
    rate = f"{format_size(download.bytes_per_s)}/s"
    if download.files:
        rate += f", {download.processes * download.files / download.s:,.0f} files/s"
    text = f"{rate} ({count}, {format_size(download.bytes)} in {_seconds(download.s)}"
    scaled = f", by one of {download.processes} processes" if download.processes > 1 else ""
    return ok("download", f"{text}{scaled})")


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else str(format_timespan(round(seconds, 1)))
