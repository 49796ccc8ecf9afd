"""`diagnose`: runs all checks in order, prints each as it finishes, and gives the result as a value for --json.

The lines are aligned and colored on a terminal; in a pipe they are plain, with each check on one line.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growfs.cache.cache_folder import folder_name
from growfs.daemon.launch import check_apart
from growfs.daemon.option_parsers import remote_url
from growfs.daemon.options import MountRequest, Options
from growfs.daemon.running import is_dead
from growfs.daemon.status_text import files, printable
from growfs.daemon.wiring import requested_features
from growfs.errors import GrowfsError
from growfs.extensions.doctor.cache_disk import CacheDisk
from growfs.extensions.doctor.check import (
    SCRATCH,
    Check,
    Level,
    Listing,
    MeasuredDownload,
    RemoteToTry,
    attempt,
    ok,
    warning,
)
from growfs.extensions.doctor.machine import check_engine, check_machine
from growfs.extensions.doctor.outlook import Outlook, check_outlook
from growfs.extensions.doctor.remote import check_remote
from growfs.fuse.mounting import check_mountpoint, check_outside, mounted_at
from growfs.paths import absolute_path, working_folder
from growfs.proc import not_ignored
from growfs.remote.interface import RemoteSpec
from growfs.remote.names import redact
from growfs.trust import resolve
from growfs.units import format_size, format_timespan

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def diagnose(
    url: str | None, mountpoint: Path | None, options: Options, measure_s: float, answer_s: float, as_json: bool
) -> int:
    """Print the findings, and return the exit code: 1 if a mount would fail. Raises UsageError.

    measure_s: how long each rate is measured. answer_s: how long a server may take to answer.
    """
    for number in not_ignored(signal.SIGTERM, signal.SIGHUP):  # like Ctrl-C, so that nothing is left behind
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, quiet=as_json)
    if not console.is_terminal:
        console = Console(highlight=False, quiet=as_json, width=100_000, color_system=None)
    status = console.status("")
    with status if console.is_terminal else nullcontext():  # without the thread that draws it, if nobody sees it
        examination = Examination(
            url, mountpoint, options, measure_s, answer_s, lambda doing: status.update(Text(doing))
        )
        with closing(examination.run()) as found:
            shown = ""
            for section, check in found:
                if section != shown:
                    console.print(*[""] * bool(shown), Text(section, "bold"), sep="\n")
                    shown = section
                console.print(_row(check, console.is_terminal))
    failures, warnings = examination.named(Level.FAILURE), examination.named(Level.WARNING)
    conclusion = Text("Mounting would work", STYLES[Level.OK])
    if failures:
        conclusion = Text(f"Mounting would fail: {', '.join(failures)}", STYLES[Level.FAILURE])
    elif warnings:
        conclusion = Text(f"Mounting would work, with a warning: {', '.join(warnings)}", STYLES[Level.WARNING])
    console.print("", conclusion, sep="\n")
    if as_json:
        click.echo(json.dumps(examination.report(), indent=1))
    return 1 if failures else 0


def _row(check: Check, on_terminal: bool) -> Table:
    text = Text(printable(check.text))
    if check.remedy and on_terminal:
        text.append("\n").append(f"-> {check.remedy}", "cyan" if check.level is Level.OK else "bold")
    elif check.remedy:
        text.append(f"; {check.remedy}")
    row = Table.grid(padding=(0, 1))
    row.add_column(width=7)
    row.add_column(width=12)
    row.add_column()
    row.add_row(Text(check.level.value, STYLES[check.level]), check.name, text)
    return row


class Examination:
    """Runs the checks. url: None to examine only the machine and the cache.

    on_phase: called with the phase that begins, if it may take a while.
    """

    def __init__(
        self,
        url: str | None,
        mountpoint: Path | None,
        options: Options,
        measure_s: float,
        answer_s: float,
        on_phase: Callable[[str], None],
    ) -> None:
        """Raises UsageError if the options contradict each other or the URL, GrowfsError if the mountpoint is a loop of
        links.
        """
        self._checks: dict[str, list[Check]] = {}
        self._options, self._on_phase = options, on_phase
        self._mountpoint = resolve(absolute_path(mountpoint)) if mountpoint else None
        self._measure_s, self._answer_s = measure_s, answer_s
        self._spec = None
        if url is not None:
            request = MountRequest(remote_url(url), self._mountpoint or Path("/"), options, working_folder())
            self._spec = request.remote()
            for feature in requested_features(request):
                feature.check(request)
        self._cache = CacheDisk(options, folder_name(self._spec, redact(self._spec.url)) if self._spec else None)
        self._engine = ""
        self._listing: Listing | None = None
        self._download: MeasuredDownload | None = None
        self._outlook = Outlook()

    def run(self) -> Generator[tuple[str, Check], None, None]:
        """Each check as soon as it is finished, with its section."""
        sections: dict[str, Iterator[Check]] = {
            "machine": check_machine(self._options.allow_other),
            f"cache {self._options.cache_dir}": self._check_cache(),
        }
        if self._spec:
            sections[f"remote {redact(self._spec.url)}"] = self._check_remote(self._spec)
            sections["what to expect"] = self._check_outlook()
        for section, checks in sections.items():
            for check in checks:
                self._checks.setdefault(section, []).append(check)
                yield section, check

    def named(self, level: Level) -> list[str]:
        """The names of the checks with this result."""
        return [check.name for checks in self._checks.values() for check in checks if check.level is level]

    def report(self) -> dict[str, Any]:
        """The result for --json: findings, measurements and expectations. Sizes in bytes, times in seconds."""
        checks = [
            {"section": section.partition(" ")[0] if section != "what to expect" else "outlook"}
            | asdict(check)
            | {"level": check.level.value}
            for section, found in self._checks.items()
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
        if self._measure_s:
            self._on_phase(f"writing and reading below {self._cache.folder}")
        yield from self._cache.checks(self._measure_s)
        if self._cache.usable and not self.named(Level.FAILURE):
            check, self._engine = check_engine(self._options.engine, self._cache.folder, self._options.allow_other)
            yield check
        if self._mountpoint:
            yield attempt("mountpoint", partial(self._check_mountpoint, self._mountpoint))

    def _check_mountpoint(self, mountpoint: Path) -> Check:
        if is_dead(mountpoint):
            return ok("mountpoint", f"{mountpoint}; mounting removes the dead mount there")
        if not (mounted_at(mountpoint) or os.path.lexists(mountpoint)):
            return ok("mountpoint", f"{mountpoint}, to be created")
        os.close(check_mountpoint(mountpoint))
        check_outside(mountpoint, "--cache-dir", self._options.cache_dir)
        return ok("mountpoint", f"{mountpoint} is an empty folder")

    def _check_remote(self, spec: RemoteSpec) -> Iterator[Check]:
        cache, measure_s = self._cache, self._measure_s
        try:
            check_apart(spec.url, self._options.cache_dir, *([self._mountpoint] if self._mountpoint else []))
            for layer in spec.layers:
                layer.check()
            scratch = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=cache.folder if cache.usable else None)
        except GrowfsError as error:
            yield Check.failed("remote", error)
            return
        except OSError as error:
            yield Check(Level.FAILURE, "remote", f"not tried: no temporary folder ({error})", "set TMPDIR to one")
            return
        with scratch as folder:
            probe = RemoteToTry(
                replace(spec, cache=Path(folder)),
                Path(folder),
                room=min(4 << 30, cache.spare),
                list_s=measure_s,
                download_s=measure_s if cache.usable else 0.0,
                bytes_per_s=self._options.bandwidth,
            )
            with closing(check_remote(probe, self._answer_s, self._on_phase)) as findings:
                for found in findings:
                    if isinstance(found, Listing):
                        self._listing = found
                        yield _describe_listing(found, spec.traits.is_endless)
                        all_fit = found.whole and found.bytes <= cache.disk.room
                        if found.missing_group and not (all_fit or self._options.group):
                            yield warning("groups", *found.missing_group)
                    elif isinstance(found, MeasuredDownload):
                        processes = self._options.workers_max if spec.traits.is_computed else 1
                        self._download = replace(found, processes=processes)
                        yield _describe_download(self._download)
                    else:
                        yield found

    def _check_outlook(self) -> Iterator[Check]:
        if self._listing is None or not self._cache.usable:
            return
        for found in check_outlook(self._options, self._cache.disk, self._listing, self._download):
            if isinstance(found, Outlook):
                self._outlook = found
            else:
                yield found


def _describe_listing(listing: Listing, is_endless: bool) -> Check:
    if is_endless:
        return ok("listing", "endless: as many files as requested")
    sizes = f", {format_size(listing.bytes)}" if listing.bytes else ""
    rate = f"in {_seconds(listing.s)} ({listing.files / max(listing.s, 1e-3):,.0f}/s)"
    if listing.whole:
        return ok("listing", f"{files(listing.files)}{sizes}, {rate}")
    return ok("listing", f"{files(listing.files)}{sizes} and more, {rate}; stopped there")


def _describe_download(download: MeasuredDownload) -> Check:
    if not download.bytes and download.first_s is None:
        return warning("download", f"no byte within {_seconds(download.s)}", "check whether another client is as slow")
    rate = f"{format_size(download.bytes_per_s)}/s"
    if download.files:
        rate += f", {download.processes * download.files / download.s:,.0f} files/s"
    text = f"{rate} ({files(download.files)}, {format_size(download.bytes)} in {_seconds(download.s)}"
    scaled = f", by one of {download.processes} processes" if download.processes > 1 else ""
    return ok("download", f"{text}{scaled})")


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else format_timespan(round(seconds, 1))
