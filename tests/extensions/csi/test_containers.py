"""What survives the driver's container, and what the containers of pods see, in namespaces as a runtime makes them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growfs.daemon.control_client import call, daemon_pid
from tests.cli.support import namespace
from tests.extensions.csi.kubelet import Kubelet
from tests.harness import until

CONTAINER = ("unshare", "--mount", "--propagation", "unchanged")
POD = """
for options in slave private; do
    mkdir "$2.$options"
    mount --rbind "$1" "$2.$options"
    mount "--make-r$options" "$2.$options"
done
echo ready
while read -r folder; do ls "$2.$folder" 2>&1 | tr '\\n' ' '; echo; done
"""
"""A container of a pod, which has a volume twice: as with HostToContainer, and as by default."""
DRIVER = """
root=$1 folder=$2 group=$3
shift 3
echo 0 > "$group/cgroup.procs"
mount -t overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" overlay "$root/files"
for path in /dev /proc /sys "$folder/kubelet" "$folder/cache"; do mount --rbind "$path" "$root/files$path"; done
cd "$root/files"
mkdir old
pivot_root . old
mount --make-rslave /old # so that unmounting it unmounts nothing elsewhere
umount -l /old
cd /
exec "$@"
"""
"""The driver's container: this machine's files below a layer of its own, in a control group of its own."""


@contextmanager
def node(kubelet: Kubelet) -> Iterator[tuple[str, ...]]:
    """A mount namespace that stands for the node, whose folder of kubelet is shared with the driver's container."""
    kubelet.kill()
    with namespace(f"mount --bind {kubelet.folder} {kubelet.folder}; mount --make-shared {kubelet.folder}") as prefix:
        kubelet.prefix = (*prefix, *CONTAINER)
        kubelet.start()
        yield prefix
        kubelet.kill()


def cache_of(kubelet: Kubelet) -> Path:
    """The folder of the only cache."""
    (announced,) = kubelet.growfs.cache_dir.glob("*/*/daemon.json")
    return announced.parent


def test_containers_see_a_mount_that_replaces_a_dead_one(kubelet: Kubelet, tmp_path: Path) -> None:
    with node(kubelet) as prefix:
        target = kubelet.publish("a", kubelet.remote)
        kubelet.publish("b", kubelet.remote)
        command = [*prefix, *CONTAINER, "sh", "-ec", POD, "-", str(target), str(tmp_path / "data")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pod:
            stdin, stdout = pod.stdin, pod.stdout
            assert stdin
            assert stdout
            assert stdout.readline() == "ready\n"

            def listed(how: str) -> str:
                print(how, file=stdin, flush=True)
                return stdout.readline()

            assert listed("slave") == listed("private") == "class0 class1 \n"
            os.kill(daemon_pid(cache_of(kubelet)), signal.SIGKILL)
            until(lambda: "not connected" in listed("slave"))
            kubelet.kill()
            kubelet.start()
            kubelet.publish("b", kubelet.remote)
            kubelet.publish("a", kubelet.remote)
            assert listed("slave") == "class0 class1 \n"
            assert "not connected" in listed("private"), "until the container starts again"
            kubelet.unpublish("b")
            assert listed("slave") == "class0 class1 \n"
        kubelet.unpublish("a")
        until(lambda: not kubelet.processes())


def test_a_mount_outlives_the_container_of_the_driver(kubelet: Kubelet, tmp_path: Path) -> None:
    """A runtime kills what is in the container's control group, and deletes what the container wrote."""
    unified = kubelet.control_groups / "unified"
    if not unified.exists():
        pytest.skip("there are no control groups of version 2")
    group, root = unified / "container", tmp_path / "container"
    kubelet.growfs.cache_dir.mkdir(mode=0o700)

    def start() -> None:
        shutil.rmtree(root, ignore_errors=True)
        for name in ("files", "upper", "work"):
            (root / name).mkdir(parents=True)
        group.mkdir()
        kubelet.prefix = (*prefix, *CONTAINER, "sh", "-ec", DRIVER, "-", str(root), str(tmp_path), str(group))
        kubelet.start()

    def end() -> None:
        (group / "cgroup.kill").write_text("1")
        until(lambda: "populated 0" in (group / "cgroup.events").read_text())
        group.rmdir()
        kubelet.kill()
        shutil.rmtree(root)

    with node(kubelet) as prefix:
        kubelet.kill()
        start()
        target = kubelet.publish("a", kubelet.remote)
        end()
        cache = cache_of(kubelet)
        daemon = daemon_pid(cache)
        for worker in Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split():
            for forked in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
                os.kill(int(forked), signal.SIGKILL)
        assert call(cache, "evict", globs=["0000.bin"])["files"] == 2
        read = subprocess.run(
            [*prefix, "cat", target / "class0/0000.bin"], capture_output=True, timeout=60, check=True
        ).stdout
        assert read == (kubelet.remote / "class0/0000.bin").read_bytes()
        start()
        kubelet.publish("b", kubelet.remote)
        assert daemon_pid(cache) == daemon
        for pod in "ab":
            kubelet.unpublish(pod)
        until(lambda: not kubelet.processes())
        end()
