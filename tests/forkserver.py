"""Runs Python programs without the start-up time: a server imports their libraries once, and forks for each program.

The programs are unmodified, and run in processes of their own. What they start with `python -m growfs...` is forked,
too: a mount is a command, a daemon and a fork server of workers, and each takes longer to import than to run.

`main` is the server: it imports modules, and serves requests from a socket until the test session ends.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import hashlib
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
FDS_MAX = 16
START = "import sys; from tests.forkserver import main; sys.path.append(sys.path.pop(0)); main()"
"""What the server runs. It imports growfs as its interpreter does: this checkout may be readable only by root."""
HIGH_FD = 1000
"""Above the descriptors of a server, and those that a program inherits."""
FAULT_VARIABLE = "GROWFS_FAULT"
"""The environment variable that growfs.disk reads when it is imported."""
COMMAND = "growfs.cli"
SESSION_VARIABLE = "TEST_SESSION"
"""An environment variable: the process of the test session, whose workers share the servers."""
CONNECT_S = 10.0
FORK_ALL_VARIABLE = "TEST_FORK_ALL"
"""An environment variable: the Python programs that a forked program starts are forked, too, whatever they are. They
have the PYTHON* variables of the server."""
SETUP_VARIABLE = "TEST_SETUP"
"""An environment variable: Python code that each of these programs runs first."""
PRELOADED = (
    "growfs.cli",
    "growfs.daemon.launch",
    "growfs.daemon.main",
    "growfs.daemon.server",
    "growfs.workers.worker",
    "growfs.fuse.passthrough",
    "growfs.fuse.libfuse",
    "growfs.remote.stores.registry",
    "growfs.extensions.manifests.inventory",
    "growfs.extensions.manifests.manifest",
    "growfs.extensions.members.members",
    "growfs.extensions.producers.produced",
    "growfs.remote.retrying",
    "growfs.client.wait",
    "growfs.extensions.doctor.examination",
    "awscrt.checksums",
    "inotify_simple",
    "pathspec",
    "rich.progress",
    "rich._emoji_codes",
)
"""Modules that the command, the daemon and the workers of most mounts import."""
PRELOADED_NETWORK = (
    "s3fs",
    "fsspec.implementations.http",
)
"""More modules, of mounts of a URL. They double the memory of a process, and so the time that a fork takes."""

os.environ.setdefault(SESSION_VARIABLE, str(os.getpid()))
SWITCH_S = sys.getswitchinterval()
THRESHOLDS = gc.get_threshold()


@dataclass(frozen=True)
class Request:
    """words: the arguments of `python`. new_session: whether the program leads a session of its own.

    fds: the numbers of the descriptors that it inherits beside its streams.
    """

    words: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    new_session: bool
    fds: tuple[int, ...]


class Process:
    """A program that the server forked. stdin, stdout, stderr: the ends of its pipes, if it has any."""

    def __init__(
        self, reply: socket.socket, stdin: TextIO | None, stdout: TextIO | None, stderr: TextIO | None
    ) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._reply = reply
        self.pid = int(reply.recv(32))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, as subprocess returns it; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._reply.settimeout(timeout)
            try:
                reply = self._reply.recv(32)
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self.returncode = os.waitstatus_to_exitcode(int(reply)) if reply else -signal.SIGKILL
            self._reply.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        if self.returncode is None and select.select([self._reply], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end; returns what it wrote to stdout and stderr, if these are pipes. A pipe holds 64 KiB."""
        self.wait(timeout)
        return self.stdout.read() if self.stdout else "", self.stderr.read() if self.stderr else ""


class ForkServer:
    """A server process, started on first use, which ends with the test session. The workers of pytest-xdist share it.

    modules: the modules that it imports. env: its environment; all programs share its PYTHON* variables. python: the
    interpreter.
    """

    def __init__(self, modules: Iterable[str], env: Mapping[str, str], python: str = sys.executable) -> None:
        self._modules = tuple(modules)
        self._env = dict(env)
        self._python = python
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def _connect(self) -> socket.socket:
        """Connect to the server, after starting it unless a worker has."""
        session = os.environ[SESSION_VARIABLE]
        kind = self._modules, self._python == sys.executable
        name = f"\0tests {session} {hashlib.sha256(repr(kind).encode()).hexdigest()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(name)
            except OSError:  # another worker has started it
                pass
            else:
                listener.listen()
                fd = listener.fileno()
                command = [self._python, "-c", START, str(fd), session]
                null = subprocess.DEVNULL
                self._server = subprocess.Popen(
                    [*command, *self._modules],
                    pass_fds=[fd],
                    cwd=ROOT,
                    env=self._env,
                    stdin=null,
                    stdout=null,
                    stderr=null,
                )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        deadline = time.monotonic() + CONNECT_S
        while connection.connect_ex(name) and time.monotonic() < deadline:  # bound, and not listening yet
            time.sleep(0.01)
        return connection

    def suits(self, env: Mapping[str, str]) -> bool:
        """Whether a program with this environment can be forked: its PYTHON* variables are those of the server."""
        return python_variables(env) == python_variables(self._env)

    def start(
        self,
        words: Iterable[object],
        env: Mapping[str, str],
        stdin: int | IO[Any] = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        cwd: str | Path | None = None,
        new_session: bool = False,
        pass_fds: Iterable[int] = (),
    ) -> Process:
        """Run `python *words`. stdin, stdout, stderr, pass_fds: as for subprocess.Popen, with text."""
        assert self.suits(env)
        with self._lock:
            self._socket = self._socket or self._connect()
        request = Request(tuple(map(str, words)), dict(env), str(cwd or Path.cwd()), new_session, tuple(pass_fds))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        to_it = from_it = errors = None
        with theirs, contextlib.ExitStack() as stack:
            if stdin == subprocess.PIPE:
                read, write = os.pipe()
                stdin, to_it = stack.enter_context(os.fdopen(read)), os.fdopen(write, "w")
            if stdout == subprocess.PIPE:
                read, write = os.pipe()
                stdout, from_it = stack.enter_context(os.fdopen(write, "w")), os.fdopen(read)
            if stderr == subprocess.PIPE:
                read, write = os.pipe()
                stderr, errors = stack.enter_context(os.fdopen(write, "w")), os.fdopen(read)
            null = stack.enter_context(Path("/dev/null").open("r+"))
            files = (null if file == subprocess.DEVNULL else file for file in (stdin, stdout, stderr))
            fds = [file if isinstance(file, int) else file.fileno() for file in files]
            socket.send_fds(self._socket, [pickle.dumps(request)], [theirs.fileno(), *fds, *request.fds])
        return Process(ours, to_it, from_it, errors)

    def run(self, words: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a program as subprocess.run does, with both streams captured."""
        with open(os.memfd_create("stdout"), "w+") as out, open(os.memfd_create("stderr"), "w+") as err:
            process = self.start(words, env, stdout=out, stderr=err)
            try:
                status = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            captured = []
            for file in (out, err):
                file.seek(0)
                captured.append(file.read())
            return subprocess.CompletedProcess(words, status, *captured)


def python_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure the interpreter."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


# The server process.


def serve(listener: socket.socket, session: int) -> None:
    """Fork for each request, until the process `session` ends."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(session, select.POLLIN)
    clients: dict[int, socket.socket] = {}
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == session:
                return
            if fd == listener.fileno():
                client, _ = listener.accept()
                clients[client.fileno()] = client
                poll.register(client, select.POLLIN)
                continue
            if fd in running:
                pid, reply = running.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError), reply:
                    reply.send(str(status).encode())
                continue
            message, fds, _, _ = socket.recv_fds(clients[fd], REQUEST_BYTES, FDS_MAX)
            if not message:
                poll.unregister(fd)
                clients.pop(fd).close()
                continue
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


def begin(request: Request, fds: Sequence[int]) -> None:
    """Set up descriptors, session, environment and directory, as in a process that was just started."""
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH_FD) for fd in fds]
    for number, fd in zip((0, 1, 2, *request.fds), copies, strict=True):
        os.dup2(fd, number)
    close_all_but(request.fds)
    if request.new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)


def close_all_but(fds: Iterable[int]) -> None:
    """Close all descriptors but these and the standard streams."""
    kept = sorted(fds)
    for low, high in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)


def become(begin: Callable[[], None], words: Sequence[str]) -> None:
    """Run a program in this process, which was forked for it. Never returns."""
    status = 1
    try:
        begin()
        status = run(words)
    except BaseException:  # noqa: BLE001 - the program's, not the server's
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def run(words: Sequence[str]) -> int:
    """Run a program as `python *words` does; returns its exit status."""
    # The state of a new interpreter, whatever the parent has set.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    for signum in signal.Signals:
        if callable(signal.getsignal(signum)):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
    tempfile.tempdir = None
    time.tzset()
    subprocess.Popen = Forking  # type: ignore[misc]
    for number, mode in enumerate("rww"):
        stream = open(number, mode, buffering=-1 if number < 2 else 1, closefd=False)  # noqa: SIM115 - as Python's own
        setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
    setproctitle(" ".join([sys.executable, *words, *title_marker()]))
    if FAULT_VARIABLE in os.environ and "growfs.disk" in sys.modules:
        importlib.reload(sys.modules["growfs.disk"])
    exec(os.environ.get(SETUP_VARIABLE, ""), {})
    main = types.ModuleType("__main__")
    if tuple(words[:2]) == ("-m", COMMAND) and COMMAND in sys.modules:  # imported, as by the installed script
        main = sys.modules[COMMAND]
        path, argv, code = str(main.__file__), words[2:], compile("main()", "<string>", "exec")
        sys.path[0] = os.getcwd()
    elif words[0] == "-m":
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
    elif words[0] == "-c":
        path, argv = "-c", words[2:]
        code = compile(words[1], "<string>", "exec")
        sys.path[0] = ""
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
    """subprocess.Popen that forks for `python -m growfs...`, where that is equivalent to starting an interpreter.

    With FORK_ALL_VARIABLE set, it forks for all Python programs. A process with threads cannot be forked; then an
    interpreter is started, which runs the code of SETUP_VARIABLE, too.
    """

    def _execute_child(self, *arguments: Any) -> None:
        names = EXECUTE_CHILD.co_varnames[1 : len(arguments) + 1]
        given = dict(zip(names, arguments, strict=True))
        words = given["args"]
        suits = isinstance(words, list) and is_forked(words, given["env"]) and given["preexec_fn"] is None
        if not suits or threading.active_count() > 1:
            if suits and SETUP_VARIABLE in os.environ:
                given["args"] = [words[0], "-c", RUN_HERE, *words[1:]]
            super()._execute_child(*given.values())  # type: ignore[misc]
            return
        self.pid = os.fork()
        if self.pid == 0:
            become(lambda: begin_as(given), list(map(str, words[1:])))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]


def is_forked(words: list[Any], env: Mapping[str, str] | None) -> bool:
    """Whether to fork for this command with this environment."""
    if FORK_ALL_VARIABLE in os.environ:
        return words[0] == sys.executable and (words[1] in ("-m", "-c") or str(words[1]).endswith(".py"))
    return words[:2] == [sys.executable, "-m"] and words[2].startswith("growfs.") and env is None


RUN_HERE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.forkserver import run
sys.exit(run(sys.argv[1:]))
"""
"""The program that runs another one as the server does, in an interpreter of its own."""
EXECUTE_CHILD = subprocess.Popen._execute_child.__code__  # type: ignore[attr-defined]


def begin_as(given: dict[str, Any]) -> None:
    """Set up the streams and descriptors of a child, from the arguments of subprocess.Popen._execute_child."""
    for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
        if given[name] != -1:
            os.dup2(given[name], number)
    close_all_but(given["pass_fds"])
    for fd in given["pass_fds"]:
        os.set_inheritable(fd, True)
    if given["start_new_session"]:
        os.setsid()
    if given["env"] is not None:
        os.environ.clear()
        os.environ.update(given["env"])
    if given["cwd"] is not None:
        os.chdir(given["cwd"])


def title_marker() -> list[str]:
    """TEST_FOLDER for the process title, where tests search: a forked process shows the server's environment."""
    return [f"TEST_FOLDER={os.environ['TEST_FOLDER']}"] if "TEST_FOLDER" in os.environ else []


def parse_descriptions_once() -> None:
    """Have botocore parse its JSON descriptions of S3 here. That takes 0.2 s, and every mount that uses it does it."""
    from botocore.loaders import JSONFileLoader

    from growfs.remote.stores.s3 import client

    JSONFileLoader.load_file = staticmethod(functools.cache(JSONFileLoader().load_file))
    client.preload()


def prepare_command() -> None:
    """Make click's objects, the regular expressions and the types of the status here. Every command needs them."""
    from growfs import cli
    from growfs.daemon.options import Options
    from growfs.status_and_metrics import Section, types_of

    with cli.mount.make_context("mount", ["URL", "MOUNTPOINT", "--cache-size", "1GB"], **cli.main.context_settings):
        Options.parse({"cache_size": "1GB"})
    for section in Section.__subclasses__():
        types_of(section)


def main() -> None:
    """The program of the server process."""
    listener, session = socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(int(sys.argv[2]))
    setproctitle(f"a fork server of {sys.argv[2]}")  # setproctitle locates the title in the unchanged environment
    for module in sys.argv[3:]:
        with contextlib.suppress(ImportError):  # the program reports a missing module itself
            importlib.import_module(module)
    if "s3fs" in sys.modules:
        parse_descriptions_once()
    if COMMAND in sys.modules:
        prepare_command()
    gc.collect()
    gc.freeze()
    serve(listener, session)
