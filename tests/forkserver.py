"""Python programs without the start of a Python: a server imports their libraries once, and forks for each of them.

The programs are unmodified, and run in processes of their own. What they start with `python -m growfs...` is forked,
too: a mount is a command, a daemon and a fork server of workers, which each take longer to import than to run.

`main` is the server: it imports modules, and takes requests from a socket until that is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from setproctitle import setproctitle

ROOT = Path(__file__).parents[1]
REQUEST_BYTES = 1 << 20
RELOADED = ("growfs.disk",)
"""What these modules do depends on the environment at their import."""
PRELOADED = (
    "growfs.cli",
    "growfs.daemon.launch",
    "growfs.daemon.main",
    "growfs.workers.worker",
    "growfs.fuse.passthrough",
    "growfs.fuse.libfuse",
    "growfs.remote.stores.s3.store",
    "growfs.remote.stores.web",
    "growfs.remote.stores.local",
    "growfs.remote.manifests.inventory",
    "growfs.remote.manifests.manifest",
    "growfs.remote.wrappers.archives",
    "growfs.remote.wrappers.producer",
    "s3fs",
    "fsspec.implementations.http",
    "rich.progress",
)
"""What the command, the daemon and the workers of most mounts import."""

SWITCH_S = sys.getswitchinterval()
THRESHOLDS = gc.get_threshold()


@dataclass(frozen=True)
class Request:
    """words: what would follow `python` on the command line. new_session: it leads one."""

    words: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    new_session: bool


class Process:
    """A program that a server forked. stdin, stdout: the ends of its pipes, where it was given such."""

    def __init__(self, reply: socket.socket, stdin: TextIO | None, stdout: TextIO | None) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._reply = reply
        self.pid = int(reply.recv(32))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, as of subprocess; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._reply.settimeout(timeout)
            try:
                said = self._reply.recv(32)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self.returncode = os.waitstatus_to_exitcode(int(said)) if said else -signal.SIGKILL
            self._reply.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        if self.returncode is None and select.select([self._reply], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Started when it is first needed; it ends with the process that started it.

    modules: what it imports. env: what tells Python how to start (PYTHONPATH and the like) is the same for all that it
    forks.
    """

    def __init__(self, modules: Iterable[str], env: Mapping[str, str]) -> None:
        self._modules = modules
        self._env = dict(env)
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-c", "from tests.forkserver import main; main()", str(fd), *self._modules]
            null = subprocess.DEVNULL
            self._server = subprocess.Popen(
                command, pass_fds=[fd], cwd=ROOT, env=self._env, stdin=null, stdout=null, stderr=null
            )
        return ours

    def suits(self, env: Mapping[str, str]) -> bool:
        """Whether a Python that is started with this environment would be as the server's."""
        return pythons(env) == pythons(self._env)

    def start(
        self,
        words: Iterable[object],
        env: Mapping[str, str],
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        cwd: str | Path | None = None,
        new_session: bool = False,
    ) -> Process:
        """Run `python *words`. stdin, stdout: as for subprocess.Popen, with text."""
        assert self.suits(env)
        with self._lock:
            self._socket = self._socket or self._start()
        request = Request(tuple(map(str, words)), dict(env), str(cwd or Path.cwd()), new_session)
        ours, theirs = socket.socketpair()
        to_it = from_it = None
        with theirs, contextlib.ExitStack() as stack:
            if stdin == subprocess.PIPE:
                read, write = os.pipe()
                stdin, to_it = stack.enter_context(os.fdopen(read)), os.fdopen(write, "w")
            if stdout == subprocess.PIPE:
                read, write = os.pipe()
                stdout, from_it = stack.enter_context(os.fdopen(write, "w")), os.fdopen(read)
            null = stack.enter_context(Path("/dev/null").open("r+"))
            files = (null if file == subprocess.DEVNULL else file for file in (stdin, stdout, stderr))
            fds = [file if isinstance(file, int) else file.fileno() for file in files]
            socket.send_fds(self._socket, [pickle.dumps(request)], [theirs.fileno(), *fds])
        return Process(ours, to_it, from_it)

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """As subprocess.run, with both streams captured."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = self.start(words, env, stdout=out, stderr=err)
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read())
            return subprocess.CompletedProcess(words, status, *said)


def pythons(env: Mapping[str, str]) -> dict[str, str]:
    """What tells Python itself how to start."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


# The server's side.


def serve(control: socket.socket) -> None:
    """Fork for each request until the other side hangs up."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for fd, _ in poll.poll():
            if fd != control.fileno():
                pid, reply = running.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError), reply:
                    reply.send(str(status).encode())
                continue
            message, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 4)
            if not message:
                return
            request: Request = pickle.loads(message)
            pid = os.fork()
            if pid == 0:
                become(lambda: begin(request, fds[1:]), request.words)  # noqa: B023 - called at once
            reply = socket.socket(fileno=fds[0])
            reply.send(str(pid).encode())
            for fd in fds[1:]:
                os.close(fd)
            process = os.pidfd_open(pid)
            running[process] = pid, reply
            poll.register(process, select.POLLIN)


def begin(request: Request, streams: Sequence[int]) -> None:
    """Be as a process that was just started."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if request.new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)


def become(begin: Callable[[], None], words: Sequence[str]) -> None:
    """Run a program in this process, which was forked for it. Never returns."""
    status = 1
    try:
        begin()
        status = run(words)
    except BaseException:  # noqa: BLE001 - this process's alone
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def run(words: Sequence[str]) -> int:
    """As `python *words` does; returns its exit status."""
    # As at the start of a Python, whatever the process set that this one was forked from.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
    tempfile.tempdir = None
    time.tzset()
    subprocess.Popen = Forking  # type: ignore[misc]
    for number, mode in enumerate("rww"):
        stream = open(number, mode, buffering=-1 if number < 2 else 1, closefd=False)  # noqa: SIM115 - as Python's own
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
    setproctitle(" ".join([sys.executable, *words, *told_of_itself()]))
    for name in RELOADED:
        if name in sys.modules:
            importlib.reload(sys.modules[name])
    main = types.ModuleType("__main__")
    if words[0] == "-m":
        spec = importlib.util.find_spec(words[1])
        assert spec
        if spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{words[1]}.__main__")
        assert spec
        assert spec.origin
        path, argv = spec.origin, words[2:]
        main.__spec__, main.__package__, main.__loader__ = spec, spec.parent, spec.loader
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        sys.path[0] = os.getcwd()
    else:
        path, argv = words[0], words[1:]
        code = compile(Path(path).read_bytes(), path, "exec")
        sys.path[0] = str(Path(path).parent)
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.argv[:] = [path, *argv]
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    return 0


class Forking(subprocess.Popen[Any]):
    """subprocess.Popen, which does not start `python -m growfs...` anew but forks, where that makes no difference."""

    def _execute_child(self, *arguments: Any) -> None:
        names = EXECUTE_CHILD.co_varnames[1 : len(arguments) + 1]
        given = dict(zip(names, arguments, strict=True))
        words = given["args"]
        if not (
            isinstance(words, list)
            and words[:2] == [sys.executable, "-m"]
            and words[2].startswith("growfs.")
            and given["env"] is None
            and given["preexec_fn"] is None
            and threading.active_count() == 1
        ):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            become(lambda: begin_as(given), words[1:])
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


EXECUTE_CHILD = subprocess.Popen._execute_child.__code__  # type: ignore[attr-defined]


def begin_as(given: dict[str, Any]) -> None:
    """As a child of subprocess does, given its arguments."""
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if given[name] != -1:
            os.dup2(given[name], number)
    kept = sorted(given["pass_fds"])
    for low, high in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
    for fd in kept:
        os.set_inheritable(fd, True)
    if given["start_new_session"]:
        os.setsid()
    if given["cwd"] is not None:
        os.chdir(given["cwd"])


def told_of_itself() -> list[str]:
    """What a test looks for in the environment of what it started, which of a forked process is the server's."""
    return [f"TEST_FOLDER={os.environ['TEST_FOLDER']}"] if "TEST_FOLDER" in os.environ else []


def main() -> None:
    """The server's process."""
    control = socket.socket(fileno=int(sys.argv[1]))
    setproctitle(f"the fork server of {os.getppid()}")  # which finds its place while the environment is as it began
    for module in sys.argv[2:]:
        with contextlib.suppress(ImportError):  # the program will say so itself
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    serve(control)
