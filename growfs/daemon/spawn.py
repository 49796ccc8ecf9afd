"""The daemon's process, as the mounting command starts it.

The daemon's imports take longer than reading a command line. So `growfs mount` starts it first, and sends it the
request once that is known; for the same reason, little is imported here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from growfs.extensions import FRONT_ENDS
from growfs.paths import working_folder
from growfs.syscalls import memfd_create

TITLE = "growfs: "
"""The start of the title of a daemon's process, by which daemons without a mount in the mount table are found."""
PATHS = (
    *("AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AZURE_CLIENT_CERTIFICATE_PATH", "AZURE_CONFIG_DIR", "AZURE_FEDERATED_TOKEN_FILE"),
    *("CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "HF_HOME", "HF_TOKEN_PATH"),
    *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "NETRC"),
    *("TMPDIR", "TEMP", "TMP", "SQLITE_TMPDIR"),
)
"""Environment variables with a path that may be relative to the working directory of the command."""
_early: DaemonProcess | None = None


class DaemonProcess:
    """A daemon that waits for its request (see `daemon.server`). If none arrives, the daemon ends.

    It stays in the process group of the command until it has mounted. Other processes would wait at an automount until
    that is done (Documentation/filesystems/autofs.rst).

    process: see `subprocess.Popen`. messages: the pipe that the daemon writes to. errors: the file that it prints to
    until it has its log.
    """

    def __init__(self, scheme: str) -> None:
        """scheme: of the remote's URL. The fork server imports the modules for such a remote."""
        self.scheme = scheme
        _open_standard_descriptors()
        reading, writing = os.pipe()
        self.messages = os.fdopen(reading)
        self.errors = os.fdopen(memfd_create("growfs-errors"), "w+")
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "growfs.daemon.main", str(writing), scheme],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                pass_fds=[writing],
                cwd="/",
                env=_environment(),
            )
        finally:
            os.close(writing)

    def send(self, request: bytes) -> None:
        """Send the request, a pickled MountRequest. If the daemon has ended, `messages` also end."""
        assert self.process.stdin
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(request)

    def close(self) -> None:
        """Close the connection. If its mount is not ready yet, the daemon notices, unmounts and ends."""
        assert self.process.stdin
        self.process.stdin.close()
        self.messages.close()
        self.errors.close()


def start_early(arguments: Sequence[str]) -> None:
    """Start the daemon that a command line will need, if its command starts one and an argument is a URL."""
    global _early
    urls = [argument for argument in arguments if "://" in argument and not argument.startswith("-")]
    if urls and arguments[0] in ("mount", *FRONT_ENDS):
        _early = DaemonProcess(urls[0].partition("://")[0])


def daemon_process(scheme: str) -> DaemonProcess:
    """The daemon that was started early, if it was for this scheme; otherwise a new one."""
    global _early
    early, _early = _early, None
    if early and early.scheme == scheme:
        return early
    if early:
        early.close()
    return DaemonProcess(scheme)


def _environment() -> dict[str, str] | None:
    """The environment for a daemon whose working directory is /; None if it needs no change."""
    relative = [name for name in PATHS if (value := os.environ.get(name)) and value[0] not in "/~"]
    return os.environ | {name: str(working_folder() / os.environ[name]) for name in relative} if relative else None


def _open_standard_descriptors() -> None:
    """Open those of 0, 1 and 2 that are closed: otherwise a pipe to the daemon gets their number and is replaced."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
