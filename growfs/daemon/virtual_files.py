"""The content of the files in .growfs/."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any

import trio

from growfs.cache.cache_folder import read_only
from growfs.cache.database import read_in_thread
from growfs.cache.publish import FIRST_SHOWN
from growfs.cache.schema import query_of, with_paths
from growfs.daemon.log_file import last_lines
from growfs.daemon.status_text import render
from growfs.rotation.rules import Generation
from growfs.status_and_metrics import MountStatus
from growfs.vfs.virtual import VirtualFile

Render = Callable[[IO[bytes], Generation | None], Awaitable[None]]
Row = tuple[str, int, str, int]
"""(path, size in bytes, directory, opens)"""
LEDGER = ("path", "size", "fetches", "opens", "first_shown", "last_shown", "local")
"""Columns of ledger.csv. first_shown, last_shown: the first and last generation that listed the file. local: 1 while it
is cached."""


def virtual_files(catalog: Path, log_file: Path, snapshot: Callable[[], Awaitable[MountStatus]]) -> list[VirtualFile]:
    """Those that each mount has. catalog: the path of the database. snapshot: returns the current status."""

    def of_status(text: Callable[[MountStatus], str]) -> Render:
        async def write(out: IO[bytes], _: Generation | None) -> None:
            out.write(text(await snapshot()).encode())

        return write

    def of_listing(write_rows: Callable[[Iterator[Row], IO[bytes]], None]) -> Render:
        async def write(out: IO[bytes], generation: Generation | None) -> None:
            assert generation
            await read_in_thread(catalog, lambda: write_rows(_listed(catalog, generation), out))

        return write

    async def ledger(out: IO[bytes], _: Generation | None) -> None:
        await read_in_thread(catalog, lambda: _write_csv(LEDGER, _ever_fetched(catalog), out))

    async def log(out: IO[bytes], _: Generation | None) -> None:
        out.write(await trio.to_thread.run_sync(last_lines, log_file))

    return [
        VirtualFile("status", of_status(render)),
        VirtualFile("status.json", of_status(lambda status: json.dumps(status, indent=1) + "\n")),
        VirtualFile("files", of_listing(_write_files), needs_generation=True, shared=True),
        VirtualFile(
            "index.csv",
            of_listing(partial(_write_csv, ("path", "size", "directory", "opens"))),
            needs_generation=True,
            shared=True,
        ),
        VirtualFile("ledger.csv", ledger, shared=True),
        VirtualFile("log", log),
    ]


def _listed(catalog: Path, generation: Generation) -> Iterator[Row]:
    """The files that a generation lists: in order of admission, or by their paths, if it has contents of its own."""
    columns = "r.seq, n.size, u.opens"
    rest = "resident r JOIN node n USING (id) JOIN usage u USING (id) WHERE n.is_dir = 0 AND r.seq <= ? ORDER BY r.seq"
    with closing(read_only(catalog)) as connection:
        rows = with_paths(query_of(connection), columns, rest, generation.last_seq)
        listed = (
            (path, size, path.rpartition("/")[0], opens) for path, seq, size, opens in rows if seq in generation.listed
        )
        yield from sorted(listed) if generation.contents else listed


def _write_files(rows: Iterator[Row], out: IO[bytes]) -> None:
    out.writelines(f"{path}\n".encode() for path, *_ in rows)


def _write_csv(columns: tuple[str, ...], rows: Iterable[Sequence[Any]], out: IO[bytes]) -> None:
    text = io.TextIOWrapper(out, newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(rows)
    text.detach()


def _ever_fetched(catalog: Path) -> Iterator[Sequence[Any]]:
    with closing(read_only(catalog)) as connection:
        yield from with_paths(
            query_of(connection),
            f"n.size, u.fetches, u.opens, coalesce(n.first_shown, {FIRST_SHOWN}),"
            " coalesce(CASE WHEN r.id THEN coalesce(r.delisted - 1, (SELECT max(number) FROM generation"
            " WHERE last_seq >= r.seq)) END, n.last_shown), r.id IS NOT NULL",
            "usage u JOIN node n USING (id) LEFT JOIN resident r USING (id)",
        )
