"""Helpers for the tests of the command line: refusals, leftovers, and other users."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from growfs.fuse.mounting import mounted_at, mounts
from tests.forkserver import PRELOADED, ForkServer, Process
from tests.harness import FORKS, GROWFS, Growfs, forks_for
from tests.needs import need_programs

NOBODY = 65534
WITHOUT_CHARTS = "from growfs.extensions.report import page; page._library = lambda: ''"
"""For SETUP_VARIABLE: `growfs report` leaves out the library that draws, which takes seconds to import."""

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
            if (
                needle in command
                or needle in (process / "environ").read_bytes()
                or any(needle in os.fsencode(os.path.realpath(link)) for link in (process / "fd").iterdir())
            ):
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
        pytest.skip("needs root: run the tests as root")


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


def fill_disk(path: Path) -> None:
    """Take all that a file system has, as another program might."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            with suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)


@functools.cache
def python_of_nobody() -> tuple[str, dict[str, str]]:
    """An interpreter that nobody can run, and its settings: that of the tests.

    If it lies in a folder that only root may enter, it is mounted below the folder of the run as well.
    """
    if not why_nobody_cannot_run(sys.executable, {}):
        return sys.executable, {}
    python, settings = python_elsewhere()
    if why := why_nobody_cannot_run(python, settings):
        pytest.skip(f"another user cannot run {sys.executable} ({why}); keep it where other users may enter")
    return python, settings


@functools.cache
def forks_of_nobody() -> ForkServer:
    """A fork server with an interpreter, and modules, that the user nobody can read."""
    python, settings = python_of_nobody()
    return ForkServer(PRELOADED, {**os.environ, **settings}, python)


def why_nobody_cannot_run(python: str, settings: dict[str, str]) -> str:
    """Why this interpreter, and those that it starts, do not find growfs as nobody; empty if they do."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import growfs.daemon'], check=True)"
    command, env = [*OtherUser.prefix, python, "-c", script], os.environ | settings
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd="/")
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def python_elsewhere() -> tuple[str, dict[str, str]]:
    """The interpreter of the tests and all that it imports, in a folder that all users may enter."""
    base = Path(sys.base_prefix)
    imported = [Path(path) for path in sys.path if os.path.isdir(path) and base not in Path(path).parents]
    folder = Path(tempfile.mkdtemp(prefix="growfs-python-"))
    folder.chmod(0o755)
    shown = []
    for number, path in enumerate([base, *imported]):
        at = folder / str(number)
        at.mkdir()
        # Read-only, because whoever clears /tmp must not delete what is mounted there.
        done = subprocess.run(["mount", "--bind", "-o", "ro", path, at], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(
                f"another user cannot run {sys.executable}, and it cannot be mounted elsewhere"
                f" ({done.stderr.strip()}); keep it where other users may enter"
            )
        shown.append(str(at))
    executable = Path(sys.executable).resolve().relative_to(base.resolve())
    settings = {"PYTHONPATH": os.pathsep.join(shown[1:]), "LD_LIBRARY_PATH": f"{shown[0]}/lib"}  # of libpython
    return f"{shown[0]}/{executable}", settings


class OtherUser:
    """Runs growfs as the user nobody, in a folder that nobody owns."""

    prefix: tuple[str, ...] = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: tuple[str, ...] = ()
        self.python, settings = python_of_nobody()
        self.env = {**os.environ, **settings, "HOME": str(folder), "TEST_FOLDER": str(folder)}

    def run(self, *arguments: object) -> Done:
        """Run growfs as nobody. It is forked, unless more than the user and the namespace are changed."""
        if self.prefix == OtherUser.prefix and len(self.before) in (0, 4):
            return run_inside(self.before, arguments, self.env, BECOME_NOBODY, forks_of_nobody())
        return self._in_place(*self.prefix, self.python, "-m", "growfs.cli", *map(str, arguments))

    def run_growfs_as_root(self, *arguments: object) -> Done:
        """Run growfs as root, in the same namespace."""
        return run_inside(self.before, arguments, self.env, "", forks_of_nobody())

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


@contextmanager
def fuse_device(mode: str = "666") -> Iterator[tuple[str, ...]]:
    """The prefix of a namespace whose /dev/fuse has these permissions: by default every user may open it."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"mount -t tmpfs tmpfs {folder}; mknod -m {mode} {folder}/fuse c 10 229"
        with namespace(f"{script}; mount --bind {folder}/fuse /dev/fuse") as prefix:
            yield prefix


def run_inside(
    prefix: Sequence[str], words: Sequence[object], env: Mapping[str, str], before: str = "", forks: ForkServer = FORKS
) -> Done:
    """Run growfs in a `namespace`, or in that of the tests. It is forked. before: as of `script`."""
    enter = [ENTER.format(prefix[1].partition("=")[2])] if prefix else []
    return forks.run(script(words, "\n".join([*enter, "import os", "os.chdir('/')", before])), env, 60)


ENTER = "import ctypes, os\nassert not ctypes.CDLL(None).setns(os.open('/proc/{}/ns/mnt', os.O_RDONLY), 0)"
"""Python code that enters the mount namespace of a process."""
BECOME_NOBODY = f"""
import ctypes, os
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self belongs to that user, as after an execve
"""


def script(words: Sequence[object], before: str = "") -> list[str]:
    """The words, for a fork server, of the installed command, which starts the daemon before it reads its arguments.

    before: what its process does first, as a shell might that starts it.
    """
    return ["-c", f"{before}\nimport sys, growfs\nsys.argv[1:] = {[*map(str, words)]!r}\ngrowfs.main()"]


def start_growfs(growfs: Growfs, *arguments: object, stderr: int = subprocess.PIPE) -> AbstractContextManager[Process]:
    """Run `growfs ...` in the background; it is killed after the block."""
    return started([*GROWFS[1:], *arguments], growfs.env, stderr)


def start_mount(
    growfs: Growfs, url: object, *flags: object, stderr: int = subprocess.PIPE
) -> AbstractContextManager[Process]:
    """Run `growfs mount` in the background; it is killed after the block."""
    return start_growfs(growfs, *growfs.mount_words(url, *flags), stderr=stderr)


@contextmanager
def started(words: Sequence[object], env: Mapping[str, str], stderr: int = subprocess.PIPE) -> Iterator[Process]:
    """Run a program by a fork server in the background; it is killed after the block."""
    process = forks_for(words).start(words, env, stdout=subprocess.PIPE, stderr=stderr, new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
