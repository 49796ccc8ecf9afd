"""`Kubelet`: calls the driver as kubelet does, over its socket. The driver, its mounts and its daemons are real."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from growfs.extensions.csi.cgroups import SLICE
from growfs.extensions.csi.generated import csi_pb2 as csi
from growfs.fuse.mounting import mounts, unmount
from tests.cli.support import processes_of
from tests.forkserver import PRELOADED, SETUP_VARIABLE, ForkServer, Process
from tests.harness import GROWFS, Growfs, until

DRIVERS = ForkServer((*PRELOADED, "growfs.extensions.csi.server", "tests.extensions.csi.forked"), os.environ)
CALL_S = 20.0
UNIFIED = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
"""Where control groups of version 2 may be mounted."""
WRITER = csi.VolumeCapability.AccessMode.Mode.SINGLE_NODE_WRITER
"""What kubelet asks for, for an inline volume."""


class Client:
    """Calls the methods of a service of csi.proto, by their names."""

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        self._channel, self._service = channel, csi.DESCRIPTOR.services_by_name[service]

    def __getattr__(self, name: str) -> Any:
        method = self._service.methods_by_name[name]
        encode = GetMessageClass(method.input_type).SerializeToString
        decode = GetMessageClass(method.output_type).FromString
        return self._channel.unary_unary(f"/{self._service.full_name}/{name}", encode, decode)


class Kubelet:
    """Starts and kills the driver, and makes its calls. Volumes are of PersistentVolumes unless a test says otherwise.

    flags: of the driver. prefix: words before its command. forks: whether its mounts are forked, as those of commands;
    then /proc does not show their environment.
    """

    def __init__(self, growfs: Growfs) -> None:
        self.growfs = growfs
        self.folder = growfs.mountpoint.parent / "kubelet"
        self.remote = growfs.mountpoint.parent / "remote"
        self.control_groups = self.folder / "control_groups"
        self.control_groups.mkdir(parents=True)
        self._group = next((path / f"growfs-test-{os.getpid()}" for path in UNIFIED if is_unified(path)), None)
        if self._group:
            self._group.mkdir()
            (self.control_groups / "unified").symlink_to(self._group)
        self.prefix: Sequence[str] = ()
        self.forks = True
        self.flags = ["--cache-dir", str(growfs.cache_dir), "--cache-size", "1GB"]
        self._running = ExitStack()
        self._driver: Process | subprocess.Popen[bytes]

    @property
    def state(self) -> Path:
        """The driver's own folder."""
        return self.folder / "growfs.csi"

    def start(self) -> None:
        """Start the driver, and return when it answers."""
        self.state.mkdir(exist_ok=True)
        words = ["csi", "--state-dir", self.state, "--node-id", "node-1"]
        words += ["--control-groups", self.control_groups, *self.flags]
        command = [*GROWFS, *words]
        with self.log.open("a") as log:
            if self.prefix:
                self._driver = subprocess.Popen(
                    [*self.prefix, *map(str, command)], env=self.growfs.env, stdin=subprocess.DEVNULL, stderr=log
                )
            else:
                setup = (
                    {SETUP_VARIABLE: "from tests.extensions.csi import forked; forked.prepare()"} if self.forks else {}
                )
                self._driver = DRIVERS.start(command[1:], self.growfs.env | setup, stderr=log)
        own = [("grpc.use_local_subchannel_pool", 1)]  # none of the driver that was killed
        channel = self._running.enter_context(grpc.insecure_channel(f"unix://{self.state}/csi.sock", own))
        self.identity, self.node = Client(channel, "Identity"), Client(channel, "Node")
        self.identity.Probe(csi.ProbeRequest(), wait_for_ready=True, timeout=CALL_S)

    @property
    def log(self) -> Path:
        """The output of all drivers."""
        return self.folder / "driver.log"

    @property
    def command_line(self) -> str:
        """The command line of the driver, as all users of the node see it."""
        return Path(f"/proc/{self._driver.pid}/cmdline").read_text()

    def kill(self) -> None:
        """SIGKILL the driver, without its mounts."""
        self._driver.kill()
        self._driver.wait()
        self._running.close()

    def restart(self, forks: bool = True) -> None:
        """Kill the driver, and start it again."""
        self.kill()
        self.forks = forks
        self.start()

    def target(self, pod: str) -> Path:
        """The path at which a pod has its volume."""
        return self.folder / "pods" / pod / "volumes/kubernetes.io~csi/data/mount"

    def publish(self, pod: str, url: object, /, secrets: dict[str, str] | None = None, **attributes: str) -> Path:
        """NodePublishVolume. attributes: with underscores. Returns the target path."""
        context = {name.replace("_", "-"): text for name, text in attributes.items()}
        request = csi.NodePublishVolumeRequest(
            volume_id=f"volume-{pod}",
            target_path=str(self.target(pod)),
            volume_capability=csi.VolumeCapability(mount={}, access_mode={"mode": WRITER}),
            volume_context={"csi.storage.k8s.io/ephemeral": "false", "url": str(url)} | context,
            secrets=secrets,
        )
        self.node.NodePublishVolume(request, timeout=CALL_S)
        return self.target(pod)

    def unpublish(self, pod: str) -> None:
        """NodeUnpublishVolume."""
        request = csi.NodeUnpublishVolumeRequest(volume_id=f"volume-{pod}", target_path=str(self.target(pod)))
        self.node.NodeUnpublishVolume(request, timeout=CALL_S)

    def stats(self, pod: str) -> csi.NodeGetVolumeStatsResponse:
        """NodeGetVolumeStats."""
        request = csi.NodeGetVolumeStatsRequest(volume_id=f"volume-{pod}", volume_path=str(self.target(pod)))
        response: csi.NodeGetVolumeStatsResponse = self.node.NodeGetVolumeStats(request, timeout=CALL_S)
        return response

    def processes(self) -> list[int]:
        """The processes of the daemons."""
        found = [int(process.partition(":")[0]) for process in processes_of(self.growfs.cache_dir)]
        return [process for process in found if process != self._driver.pid]

    def daemons(self) -> int:
        """How many daemons the driver's mounts have."""
        return len([row for row in mounts() if row.mountpoint.parent == self.state / "mounts"])

    def groups(self) -> list[Path]:
        """The control groups of the volumes."""
        return [path for path in self.control_groups.glob(f"unified/{SLICE}/*") if path.is_dir()]

    def has_removed_groups(self) -> bool:
        """Make the driver clean up; returns whether no group is left."""
        self.unpublish("none")
        return not self.groups()

    def close(self) -> None:
        """End the driver, and every mount and daemon that a failed test has left."""
        if self._driver.poll() is None:
            self.kill()
        for row in reversed(mounts()):
            if self.folder in row.mountpoint.parents:
                unmount(row.mountpoint, lazy=True)
        until(lambda: not processes_of(self.growfs.cache_dir))
        if self._group:
            for path in (*self.groups(), self._group / SLICE, self._group):
                until(partial(is_removed, path))


def is_unified(path: Path) -> bool:
    """Whether control groups of version 2 are mounted there."""
    return (path / "cgroup.controllers").exists()


def is_removed(group: Path) -> bool:
    """Whether a control group is gone, or could be removed now."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # a process in it is ending
        return False
    return True


def code_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """(code, message) of a call that fails."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the call did not fail")
