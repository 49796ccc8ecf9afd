"""A mount as a service of systemd: the unit, and what systemd hears of the mount."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.daemon.launch import notify
from growfs.fuse.mounting import mounted_at
from tests.cli.support import start_growfs
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree
from tests.needs import need_programs

UNIT = Path(__file__).parents[2] / "tools/systemd/growfs@.service"
SOON = "from growfs.daemon import launch; launch.STATUS_EVERY_S = 0.1"


class ServiceManager:
    """The end of the socket on which systemd listens."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening

    def next(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self._socket.recv(65536).decode().split("\n"))

    def until(self, name: str, text: str) -> None:
        while text not in self.next().get(name, ""):
            pass


@contextmanager
def service_manager(address: str) -> Iterator[ServiceManager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address.replace("@", "\0"))
        listening.settimeout(30)
        yield ServiceManager(listening)


def exec_start() -> list[str]:
    """The arguments of the command that the unit starts."""
    (line,) = (line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    program, *arguments = line.removeprefix("ExecStart=").split()
    assert program == "growfs"
    return arguments


def test_systemd_hears_when_the_mount_is_ready_of_its_state_and_its_end(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=2)
    address = f"{tmp_path}/notify"
    growfs.env |= {"NOTIFY_SOCKET": address, SETUP_VARIABLE: SOON, "GROWFS_CACHE_DIR": str(growfs.cache_dir)}
    variables = {"${URL}": f"{tmp_path}/remote", "${MOUNTPOINT}": str(growfs.mountpoint)}
    words = [variables.get(word, word) for word in exec_start()]
    with service_manager(address) as systemd, start_growfs(growfs, *words) as service:
        ready = systemd.next()
        assert ready["READY"] == "1"
        assert "2 of 2 files cached" in ready["STATUS"]
        assert mounted_at(growfs.mountpoint)
        growfs.run("pause", growfs.mountpoint)
        systemd.until("STATUS", "paused")
        service.send_signal(signal.SIGTERM)
        systemd.until("STOPPING", "1")
        assert service.wait(30) == 0
    assert not mounted_at(growfs.mountpoint)


def test_systemd_hears_on_an_abstract_address_too_and_nothing_fails_if_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{tmp_path}")
    with service_manager(f"@{tmp_path}") as systemd:
        notify("READY=1")
        assert systemd.next() == {"READY": "1"}
    for nobody_listens in ("/no/such/socket", "@nobody-listens", "", "relative"):
        monkeypatch.setenv("NOTIFY_SOCKET", nobody_listens)
        notify("READY=1")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    need_programs("systemd-analyze", by="apt-get install systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("ExecStart=growfs", f"ExecStart={shutil.which('true')}"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr


def test_the_unit_gives_the_service_no_mount_namespace_of_its_own() -> None:
    """systemd.exec(5): these imply one, and then nobody else sees the mount."""
    names = {line.partition("=")[0] for line in UNIT.read_text().splitlines() if not line.startswith("#")}
    for prefix in ("Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "Temporary", "Bind", "MountFlags"):
        assert not [name for name in names if name.startswith(prefix)]
