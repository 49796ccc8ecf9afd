"""Helpers for the tests of the command line: refusals, leftovers, other users, and a server that can block."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from urllib.parse import unquote

import pytest

from growfs.fuse.mounting import mounted_at, mounts
from tests.forkserver import Process
from tests.harness import GROWFS, Growfs, forks_for
from tests.needs import need_programs
from tests.servers import serving

NOBODY = 65534

Done = subprocess.CompletedProcess[str]


def assert_refused(done: Done, *expected: str, exit_code: int = 1) -> None:
    """Assert that a command failed with one readable line on stderr, with these texts, and nothing on stdout."""
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("growfs: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "a bug in growfs" not in done.stderr
    assert done.stdout == ""
    for text in expected:
        assert text in done.stderr


def processes_of(folder: Path) -> list[str]:
    """The growfs processes that use a folder, found by their title, an open file or their environment."""
    found = []
    needle = os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if int(process.name) == os.getpid() or b"growfs" not in command:
                continue
            links = [os.fsencode(os.readlink(link)) for link in (process / "fd").iterdir()]
            if needle in command or needle in (process / "environ").read_bytes() or any(needle in at for at in links):
                found.append(f"{process.name}: {command!r}")
        except OSError:
            continue
    return found


def cache_folders(cache_dir: Path) -> list[Path]:
    """The cache folders in a cache directory: one for each remote that was mounted with it."""
    return [path for path in cache_dir.iterdir() if path.is_dir()] if cache_dir.is_dir() else []


def leftovers(growfs: Growfs) -> list[str]:
    """What a failed mount must not leave behind: a mount, a process, a cache folder."""
    mounted = [str(mount.mountpoint) for mount in mounts() if growfs.mountpoint.parent in mount.mountpoint.parents]
    return mounted + processes_of(growfs.mountpoint.parent) + [str(path) for path in cache_folders(growfs.cache_dir)]


def mark_environment(growfs: Growfs) -> Growfs:
    """Set a variable by which `processes_of` finds all processes of this command, before they open anything."""
    growfs.env["TEST_FOLDER"] = str(growfs.mountpoint.parent)
    return growfs


def needs_root() -> None:
    """Skip unless the test can change users and mount file systems."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@contextmanager
def closed(growfs: Growfs) -> Iterator[Growfs]:
    """The clean-up of the `growfs` fixture, for a fixture of another scope."""
    try:
        yield growfs
    finally:
        if mounted_at(growfs.mountpoint):
            growfs.run("umount", "--lazy", growfs.mountpoint, check=False)
    assert "Traceback" not in growfs.log()


@contextmanager
def tmpfs(at: Path, *options: str) -> Iterator[Path]:
    """A file system in memory, unmounted after the block."""
    needs_root()
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options or ("rw",)), "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@functools.cache
def python_of_nobody() -> tuple[str, dict[str, str]]:
    """An interpreter that nobody can run, and its settings: that of the tests or, if it is root's alone, the system's.

    Skips if there is none."""
    probe = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import growfs.daemon'], check=True)"
    same = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}"
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for python, settings, script in ((sys.executable, {}, probe), ("/usr/bin/python3", path, f"{same}; {probe}")):
        command = [*OtherUser.prefix, python, "-c", script]
        env = os.environ | settings
        if subprocess.run(command, capture_output=True, env=env, check=False, cwd="/").returncode == 0:
            return python, settings
    pytest.skip(f"another user cannot run {sys.executable}")


class OtherUser:
    """Runs growfs as the user nobody, in a folder that nobody owns."""

    prefix: tuple[str, ...] = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: tuple[str, ...] = ()
        self.python, settings = python_of_nobody()
        self.env = {**os.environ, **settings, "HOME": str(folder), "TEST_FOLDER": str(folder)}

    def run(self, *arguments: object) -> Done:
        return self._in_place(*self.prefix, self.python, "-m", "growfs.cli", *map(str, arguments))

    def run_program(self, *command: object) -> Done:
        """Run another program as nobody."""
        return self._in_place(*self.prefix, *map(str, command))

    def run_as_root(self, *command: object) -> Done:
        """Run a program as root, in the same namespace; sys.executable may be readable only by root."""
        return self._in_place(*map(str, command))

    def _in_place(self, *command: str) -> Done:
        return subprocess.run(
            [*self.before, *command], capture_output=True, text=True, env=self.env, timeout=60, check=False, cwd="/"
        )


@contextmanager
def other_user() -> Iterator[OtherUser]:
    """The user nobody, with a folder of its own; skips where that is impossible."""
    needs_root()
    need_programs("setpriv", "fusermount3", by="apt-get install util-linux fuse3")
    folder = Path(tempfile.mkdtemp(prefix="growfs-other-"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o755)
        yield OtherUser(folder)
    finally:
        for mount in mounts():
            if folder in mount.mountpoint.parents:
                subprocess.run(["umount", "-l", str(mount.mountpoint)], check=False)
        shutil.rmtree(folder)


@contextmanager
def namespace(script: str, keep: Path | None = None) -> Iterator[tuple[str, ...]]:
    """A command prefix that enters a mount namespace of its own, prepared by a shell script.

    Of the growfs mounts it keeps that one only: those of other tests could not be unmounted while it lasts.
    """
    needs_root()
    drop = (
        f'awk \'$3 == "fuse.growfs" && $2 != "{keep}" {{ print $2 }}\' /proc/self/mounts'
        ' | while read -r path; do umount -l "$(printf %b "$path")" || true; done'
    )
    command = ["unshare", "--mount", "sh", "-ec", f"{drop}\n{script}\necho ready\nread end"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout
        if holder.stdout.readline() != "ready\n":
            pytest.skip("this machine allows no mount namespace")
        yield ("nsenter", f"--target={holder.pid}", "--mount", "--")


class ListingServer:
    """A web server with an HTML listing of a few files.

    blocked: paths whose response waits for `unblock`. denied: paths answered with 403. requested: the GET requests."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.blocked: set[str] = set()
        self.denied: set[str] = set()
        self.requested: list[str] = []
        self.url = ""
        self.on_headers: Callable[[Message], object] = id
        self._changed = threading.Condition()

    def unblock(self, *paths: str) -> None:
        """Answer the blocked requests for these paths, or for all."""
        with self._changed:
            self.blocked.difference_update(paths or set(self.blocked))
            self._changed.notify_all()

    def wait(self, path: str) -> None:
        """Record a request, and block while its path is blocked."""
        with self._changed:
            self.requested.append(path)
            self._changed.wait_for(lambda: path not in self.blocked)


@contextmanager
def listing_server(files: dict[str, bytes], *blocked: str) -> Iterator[ListingServer]:
    """Serve files, of which some are blocked; the path '' is the listing."""
    server = ListingServer(files)
    server.blocked.update(blocked)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # one thread serves many requests

        def do_HEAD(self) -> None:
            self.answer(self.content())

        def do_GET(self) -> None:
            path = unquote(self.path).lstrip("/")
            server.on_headers(self.headers)
            server.wait(path)
            content = self.content()
            self.answer(content)
            self.wfile.write(content or b"")

        def content(self) -> bytes | None:
            path = unquote(self.path).lstrip("/")
            listing = "".join(f'<a href="/{name}">{name}</a>' for name in server.files)
            return server.files.get(path) if path else listing.encode()

        def answer(self, content: bytes | None) -> None:
            denied = unquote(self.path).lstrip("/") in server.denied
            self.send_response(403 if denied else 404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler) as url:
        server.url = url
        try:
            yield server
        finally:
            server.unblock()


@contextmanager
def start_growfs(growfs: Growfs, *arguments: object, stderr: int = subprocess.PIPE) -> Iterator[Process]:
    """Run `growfs ...` in the background; it is killed after the block."""
    words = [*GROWFS[1:], *arguments]
    process = forks_for(words).start(words, growfs.env, stdout=subprocess.PIPE, stderr=stderr, new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
