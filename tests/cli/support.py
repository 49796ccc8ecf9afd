"""What the tests of the command line share: what a refusal looks like, what may be left over, other users, gates."""

from __future__ import annotations

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
from tests.harness import GROWFS, Growfs
from tests.servers import serving

NOBODY = 65534

Done = subprocess.CompletedProcess[str]


def assert_refused(done: Done, *says: str, exit_code: int = 1) -> None:
    """One line for people on stderr, nothing on stdout."""
    assert done.returncode == exit_code, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("growfs: ")
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "a bug in growfs" not in done.stderr
    assert done.stdout == ""
    for text in says:
        assert text in done.stderr


def processes_of(folder: Path) -> list[str]:
    """The growfs processes that have to do with a folder: by their title, an open file or their environment."""
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
    """One for each remote that was mounted with this cache directory."""
    return [path for path in cache_dir.iterdir() if path.is_dir()] if cache_dir.is_dir() else []


def left_over(growfs: Growfs) -> list[str]:
    """What a mount that did not come to be must not leave: a mount, a process, a cache folder."""
    mounted = [str(mount.mountpoint) for mount in mounts() if growfs.mountpoint.parent in mount.mountpoint.parents]
    return mounted + processes_of(growfs.mountpoint.parent) + [str(path) for path in cache_folders(growfs.cache_dir)]


def mark(growfs: Growfs) -> Growfs:
    """Have `processes_of` find what this command starts, even before it has opened anything."""
    growfs.env["TEST_FOLDER"] = str(growfs.mountpoint.parent)
    return growfs


def needs_root() -> None:
    """Skip where the test cannot act as others, or mount what it likes."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@contextmanager
def closed(growfs: Growfs) -> Iterator[Growfs]:
    """What the `growfs` fixture does after a test, for one of another scope."""
    try:
        yield growfs
    finally:
        if mounted_at(growfs.mountpoint):
            growfs.run("umount", "--lazy", growfs.mountpoint, check=False)
    assert "Traceback" not in growfs.log()


@contextmanager
def tmpfs(at: Path, *options: str) -> Iterator[Path]:
    """A file system in memory."""
    needs_root()
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options or ("rw",)), "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


class OtherUser:
    """Runs growfs as nobody, in a folder of nobody's."""

    prefix: tuple[str, ...] = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = sys.executable
        self.before: tuple[str, ...] = ()
        self.env = {**os.environ, "HOME": str(folder), "TEST_FOLDER": str(folder)}

    def find_python(self) -> bool:
        """The interpreter of the tests may lie in a folder of root's; the system's will do then."""
        probe = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import growfs.daemon'], check=True)"
        if self._succeeds(probe):
            return True
        self.python = "/usr/bin/python3"
        self.env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        same = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}"
        return self._succeeds(f"{same}; {probe}")

    def _succeeds(self, script: str) -> bool:
        command = [*self.prefix, self.python, "-c", script]
        return subprocess.run(command, capture_output=True, env=self.env, check=False, cwd="/").returncode == 0

    def run(self, *arguments: object) -> Done:
        return self._in_place(*self.prefix, self.python, "-m", "growfs.cli", *map(str, arguments))

    def runs(self, *command: object) -> Done:
        """Another program, as nobody."""
        return self._in_place(*self.prefix, *map(str, command))

    def root_runs(self, *command: object) -> Done:
        """In the same place; sys.executable is root's."""
        return self._in_place(*map(str, command))

    def _in_place(self, *command: str) -> Done:
        return subprocess.run(
            [*self.before, *command], capture_output=True, text=True, env=self.env, timeout=60, check=False, cwd="/"
        )


@contextmanager
def other_user() -> Iterator[OtherUser]:
    """Skips where there can be none."""
    needs_root()
    if not shutil.which("setpriv") or not shutil.which("fusermount3"):
        pytest.skip("setpriv or fusermount3 is missing")
    folder = Path(tempfile.mkdtemp(prefix="growfs-other-"))
    try:
        os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o755)
        user = OtherUser(folder)
        if not user.find_python():
            pytest.skip(f"another user cannot run {sys.executable}")
        yield user
    finally:
        for mount in mounts():
            if folder in mount.mountpoint.parents:
                subprocess.run(["umount", "-l", str(mount.mountpoint)], check=False)
        shutil.rmtree(folder)


@contextmanager
def namespace(script: str) -> Iterator[tuple[str, ...]]:
    """What to put before a command that runs in a mount namespace of its own, after a shell script has changed it."""
    needs_root()
    command = ["unshare", "--mount", "sh", "-ec", f"{script}\necho ready\nread end"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout
        if holder.stdout.readline() != "ready\n":
            pytest.skip("this machine allows no mount namespace")
        yield ("nsenter", f"--target={holder.pid}", "--mount", "--")


class Gate:
    """A web server of a few files. It answers what is `held` only once it is let go, and what is `refused` with 403."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.held: set[str] = set()
        self.refused: set[str] = set()
        self.asked: list[str] = []
        self.url = ""
        self.on_headers: Callable[[Message], object] = id
        self._changed = threading.Condition()

    def let_go(self, *paths: str) -> None:
        """Of these, or of all."""
        with self._changed:
            self.held.difference_update(paths or set(self.held))
            self._changed.notify_all()

    def wait(self, path: str) -> None:
        """Called by the server."""
        with self._changed:
            self.asked.append(path)
            self._changed.wait_for(lambda: path not in self.held)


@contextmanager
def gated(files: dict[str, bytes], *held: str) -> Iterator[Gate]:
    """Serve files; '' is the listing."""
    gate = Gate(files)
    gate.held.update(held)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(self.content())

        def do_GET(self) -> None:
            path = unquote(self.path).lstrip("/")
            gate.on_headers(self.headers)
            gate.wait(path)
            content = self.content()
            self.answer(content)
            self.wfile.write(content or b"")

        def content(self) -> bytes | None:
            path = unquote(self.path).lstrip("/")
            listing = "".join(f'<a href="/{name}">{name}</a>' for name in gate.files)
            return gate.files.get(path) if path else listing.encode()

        def answer(self, content: bytes | None) -> None:
            refused = unquote(self.path).lstrip("/") in gate.refused
            self.send_response(403 if refused else 404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Handler) as url:
        gate.url = url
        try:
            yield gate
        finally:
            gate.let_go()


@contextmanager
def started(growfs: Growfs, *arguments: object, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """`growfs ...` that goes on while the block runs."""
    command = [*GROWFS, *map(str, arguments)]
    process = subprocess.Popen(
        command,
        text=True,
        env=growfs.env,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)
