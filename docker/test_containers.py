"""The image, compose.yaml and the pods of kubernetes/, run by podman. docker/check installs what this needs."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.harness import make_tree, until
from tests.needs import need_programs
from tests.test_docker import DOCKER, KUBERNETES, OVERLAYS, ROOT, Yaml, containers_of, documents, expressions, pod_of

pytestmark = pytest.mark.timeout(600)

MOUNT = "/mnt/growfs/train"
URL = "s3://bucket/train"
NETWORK = "growfs-check"
STORE = {"GROWFS_ENDPOINT_URL": "http://s3:9000", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
STORE_FLAGS = [f"--env={name}={value}" for name, value in STORE.items()]
AS_IN_DOCKER = ["setpriv", "--inh-caps=-all", "--ambient-caps=-all"]
"""Takes from a user other than root what podman alone gives to it: the capabilities of --cap-add."""
ENDED_EARLY = {1, 143}
"""Exit codes of a mount that SIGTERM ended before it was ready: its own, or that of the signal."""

# The limits are those of a process, not the defaults of podman, which may be above what this machine allows.
# runc also runs where crun refuses the cgroups.
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "{work}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{work}/networks"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
graphroot = "{work}/root"
runroot = "{work}/run"
"""
# Stand-ins for images of registries, by the names that compose.yaml and the manifests have.
BASES = ["python:3.13-slim-trixie", "busybox:1.37"]
STAND_INS = {"rclone/rclone:1.71.0": "rclone", "prom/prometheus:v3.5.0": "prometheus"}
STAND_IN = """
FROM docker.io/library/python:3.13-slim-trixie
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus
COPY rclone /usr/bin/
WORKDIR /prometheus
"""


def podman(*words: object, check: bool = True, timeout_s: float = 500, text: str | None = None) -> str:
    """The output of a podman command."""
    command = ["podman", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, input=text)
    if check and done.returncode:
        pytest.fail(f"{shlex.join(command)}: {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout.strip()


def logs(container: str) -> str:
    return subprocess.run(
        ["podman", "logs", container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    ).stdout


def succeeds(*words: object) -> bool:
    return subprocess.run(["podman", *map(str, words)], capture_output=True, timeout=100, check=False).returncode == 0


@pytest.fixture(scope="session")
def work() -> Iterator[Path]:
    """A folder that podman keeps everything in, with the images, on a file system that is shared with containers."""
    if os.geteuid() != 0:
        pytest.skip("podman runs as root here")
    need_programs("podman", "runc", "mmdebstrap", by="docker/check installs it")
    kept = os.environ.get("CHECK_FOLDER")
    folder = Path(kept or tempfile.mkdtemp(prefix="growfs-check-", dir="/var/tmp"))
    folder.mkdir(exist_ok=True)
    (folder / "containers.conf").write_text(CONTAINERS_CONF.format(work=folder))
    (folder / "storage.conf").write_text(STORAGE_CONF.format(work=folder))
    (folder / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
    os.environ["CONTAINERS_CONF"] = str(folder / "containers.conf")
    os.environ["CONTAINERS_STORAGE_CONF"] = str(folder / "storage.conf")
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(folder / "registries.conf")
    if not (folder / "fuse").exists():  # containers get the mode, too, which is 600 on a machine without udev
        os.mknod(folder / "fuse", 0o666 | stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
        (folder / "fuse").chmod(0o666)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    try:
        make_images(folder)
        yield folder
    finally:
        podman("pod", "rm", "-fa", check=False)
        podman("rm", "-fa", "-t", "0", check=False)
        podman("network", "rm", "-f", NETWORK, check=False)
        subprocess.run(["umount", "--recursive", "--lazy", folder], check=False)
        if not kept:
            shutil.rmtree(folder)


def make_images(work: Path) -> None:
    if not succeeds("image", "exists", BASES[0]):
        tar = work / "base.tar"
        packages = "python3,python3-venv,python3-dev,ca-certificates"
        certificates = (
            "/etc/ssl/certs/ca-certificates.crt"  # those of this machine, for the index that it installs from
        )
        hook = f"--customize-hook=copy-in {certificates} /etc/ssl/certs"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}", hook, "trixie", tar], check=True
        )
        podman(
            "import", "--change=ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", tar, BASES[0]
        )
        tar.unlink()
        podman("tag", BASES[0], *(f"docker.io/library/{name}" for name in BASES))
    podman("build", "--format=docker", "--file", DOCKER / "Dockerfile", "--tag=growfs", ROOT)
    context = work / "stand-in"
    context.mkdir(exist_ok=True)
    rclone = shutil.which("rclone") or Path(sys.executable).with_name("rclone")
    shutil.copy(rclone, context)
    (context / "Dockerfile").write_text(STAND_IN)
    podman("build", "--tag=stand-in", context)
    for name, program in STAND_INS.items():
        podman("build", f"--tag=docker.io/{name}", "-", text=f'FROM stand-in\nENTRYPOINT ["{program}"]\n')


@pytest.fixture(scope="session")
def files(work: Path) -> dict[str, bytes]:
    """What an S3 server at http://s3:9000 has below `URL`."""
    remote = work / "remote"
    shutil.rmtree(remote, ignore_errors=True)
    files = make_tree(remote / "bucket/train", directories=4, files=50, size=50_000)
    for number in range(40):
        large = remote / f"bucket/large/{number % 4}/{number}"
        large.parent.mkdir(parents=True, exist_ok=True)
        large.touch()
        os.truncate(large, 10_000_000)
    podman("network", "rm", "-f", NETWORK, check=False)
    podman("network", "create", NETWORK)
    run(
        "s3",
        "-v",
        f"{remote}:/data:ro",
        "rclone/rclone:1.71.0",
        "serve",
        "s3",
        "/data",
        "--addr=:9000",
        "--auth-key=key,secret",
    )
    return files


def run(name: str, *words: object) -> str:
    """Start a container in the background; returns its ID."""
    return podman("run", "--detach", f"--name={name}", f"--network={NETWORK}", *words)


@pytest.fixture
def shared(work: Path, files: dict[str, bytes]) -> Iterator[Path]:
    """A folder for mounts, and one for a cache beside it. Nothing may be mounted there after the test."""
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir=work))
    folder.chmod(0o755)
    (folder / "mnt").mkdir()
    (folder / "cache").mkdir()
    yield folder
    podman("pod", "rm", "-fa", check=False)
    for name in podman("ps", "-a", "--format={{.Names}}").split():
        if name != "s3":
            podman("rm", "-f", "-t", "0", name)
    left = mounts_in(work)
    for mountpoint in left:
        subprocess.run(["umount", "--lazy", mountpoint], check=False)
    assert not left


def mounts_in(folder: Path) -> list[str]:
    """The mounts of growfs that this machine sees in a folder."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [row[4] for row in rows if "fuse.growfs" in row and row[4].startswith(f"{folder}/")]


def gone(container: str) -> bool:
    """Whether no process of a container is left, by their cgroups: also none that has left its namespaces."""
    for cgroup in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if container in cgroup.read_text() and cgroup.with_name("cmdline").read_text():
                return False
        except OSError:
            pass  # it has ended
    return True


def fuse(work: Path) -> list[str]:
    return [f"--device={work}/fuse:/dev/fuse", "--cap-add=SYS_ADMIN"]


def digest(files: dict[str, bytes]) -> str:
    return hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest()


def digest_of(container: str, folder: str) -> str:
    """The same, as a container reads the files."""
    return podman("exec", container, "sh", "-c", f"cd {folder} && cat */* | sha256sum", check=False).split(" ")[0]


def wait_until_full(container: str, mountpoint: str = MOUNT) -> None:
    until(lambda: succeeds("exec", container, "growfs", "wait", mountpoint, "--all", "--timeout=60s"), 100)


def exit_code(container: str, timeout_s: float = 20) -> int:
    """The exit code of a container that ends by itself, or as asked."""
    return int(podman("wait", container, timeout_s=timeout_s))


def test_the_image_has_no_compiler(work: Path) -> None:
    assert not podman("run", "--rm", "--entrypoint=sh", "growfs", "-c", "command -v cc gcc pip || true")


def test_the_user_of_the_image_mounts_with_a_read_only_root_and_little_memory(work: Path, shared: Path) -> None:
    """As process 1, 400 MB in a container that may have 300. The healthcheck passes; SIGTERM ends it with 0."""
    limits = ["--memory=300m", "--memory-swap=300m", "--read-only", "--tmpfs=/tmp", "--tmpfs=/mnt:mode=1777"]
    entrypoint = f"--entrypoint={json.dumps(['tini', '-s', '--', *AS_IN_DOCKER, 'growfs'])}"
    volumes = ["-v", "cache:/home/growfs/.cache/growfs"]
    command = ["growfs", "mount", "--foreground", "s3://bucket/large", "/mnt/train", "--cache-size=1GB"]
    container = run("growfs", *fuse(work), *STORE_FLAGS, *limits, *volumes, entrypoint, *command)
    wait_until_full("growfs", "/mnt/train")
    assert podman("exec", "growfs", "sh", "-c", "cat /mnt/train/*/* | wc -c") == "400000000"
    assert podman("exec", "growfs", "id", "-u") == "1000"
    assert "libfuse engine" in logs("growfs")
    assert not succeeds("exec", "--user=0", "growfs", "touch", "/opt/growfs/x"), "the root is writable"
    peak = "cat /sys/fs/cgroup/memory/memory.max_usage_in_bytes || cat /sys/fs/cgroup/memory.peak"
    assert 250 < int(podman("exec", "growfs", "sh", "-c", peak)) >> 20 <= 300
    assert "died" not in podman("exec", "growfs", "sh", "-c", "cat ~/.cache/growfs/*/log")
    assert succeeds("healthcheck", "run", "growfs")
    podman("kill", "--signal=TERM", "growfs")
    assert exit_code("growfs") == 0
    assert gone(container)
    podman("volume", "rm", "-f", "cache")


def readme_command(shared: Path, user: str) -> list[str]:
    """The `docker run` of README.md, with folders of the test."""
    text = (DOCKER / "README.md").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^docker (run .*)$", text, re.MULTILINE)
    words = shlex.split(command, comments=True)
    home = "/root" if user == "0" else "/home/growfs"
    changes = {
        "0": user,
        "/dev/fuse": f"{shared.parent}/fuse:/dev/fuse",
        "/mnt/growfs:/mnt/growfs:rshared": f"{shared}/mnt:/mnt/growfs:rshared",
        "/nvme/growfs:/root/.cache/growfs": f"{shared}/cache:{home}/.cache/growfs",
    }
    assert changes.keys() <= set(words)
    more = [] if user == "0" else ["--allow-other"]
    return [*(changes.get(word, word) for word in words[1:]), *more]


@pytest.mark.parametrize("user", ["0", "1000"])
def test_a_reader_in_another_container_sees_the_mount_end_die_and_come_again(
    shared: Path, files: dict[str, bytes], user: str
) -> None:
    if user != "0":
        for folder in ("mnt", "cache"):
            os.chown(shared / folder, int(user), int(user))
    command = [*STORE_FLAGS, *readme_command(shared, user)]
    run("reader", "--user=1001", "-v", f"{shared}/mnt:/data:rslave", BASES[1], "sleep", "infinity")

    def starts() -> str:
        podman("rm", "-f", "growfs", check=False)
        container = run("growfs", *command)
        wait_until_full("growfs")
        assert digest_of("reader", "/data/train") == digest(files)
        return container

    container = starts()
    assert "passthrough engine" in logs("growfs")
    podman("stop", "--time=90", "growfs")
    assert exit_code("growfs") == 0
    assert gone(container)
    assert not mounts_in(shared)
    assert "fuse.growfs" not in podman("exec", "reader", "cat", "/proc/self/mounts")
    container = starts()
    podman("kill", "--signal=KILL", "growfs")
    assert exit_code("growfs") == 137
    until(partial(gone, container))
    assert "not connected" in podman("exec", "reader", "sh", "-c", "ls /data/train 2>&1 || true")
    starts()
    podman("stop", "--time=90", "growfs")


@pytest.mark.parametrize("pid", ["private", "host"])
def test_sigterm_before_the_mount_is_ready_leaves_nothing(work: Path, shared: Path, pid: str) -> None:
    """At any time from the start of the container on, with a store that does not answer."""
    volumes = ["-v", f"{shared}/mnt:/mnt/growfs:rshared", "-v", f"{shared}/cache:/root/.cache/growfs"]
    options = [*fuse(work), *volumes, "--user=0", "--network=host", f"--pid={pid}"]
    mount = ["growfs", "mount", "--foreground", URL, MOUNT]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = STORE | {"GROWFS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        environment = [f"--env={name}={value}" for name, value in store.items()]
        for delay_s in (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.5, 3):
            container = podman("run", "--detach", "--name=growfs", *options, *environment, *mount)
            time.sleep(delay_s)
            podman("kill", "--signal=TERM", "growfs")
            code = exit_code("growfs")
            assert code in ENDED_EARLY, (delay_s, code, logs("growfs"))
            until(partial(gone, container), 5)
            assert not mounts_in(shared), delay_s
            podman("rm", "growfs")


def test_every_alert_fires_as_its_test_says(work: Path) -> None:
    options = ["--rm", "--entrypoint=promtool", f"--volume={DOCKER}/monitoring:/rules:ro"]
    podman("run", *options, "prom/prometheus:v3.5.0", "test", "rules", "/rules/alerts.test.yaml")


def test_compose_trains_and_is_scraped(shared: Path) -> None:
    environment = {**os.environ, "MOUNTS": str(shared / "mnt")}

    def compose(*words: str) -> None:
        command = [str(Path(sys.executable).with_name("podman-compose")), f"--file={DOCKER / 'compose.yaml'}", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])

    def answer(query: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:9090/api/v1/{query}", timeout=5) as response:
                return json.load(response)["data"]
        except OSError:
            return None

    # Podman 4.3 neither runs healthchecks without systemd nor waits for them: the trainer is started when it passes.
    try:
        compose("up", "-d", "growfs", "prometheus")
        until(lambda: succeeds("healthcheck", "run", "growfs_growfs_1"), 60)
        compose("up", "-d", "trainer")
        until(lambda: "epoch 2: " in logs("growfs_trainer_1"), 60)
        assert ", 0 MB" not in logs("growfs_trainer_1")
        until(lambda: (data := answer("query?query=growfs_cache_bytes")) and data["result"], 30)
        for expression in expressions():
            assert answer(f"query?query={quote(expression)}"), expression
        (group,) = answer("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
    except BaseException:
        print(logs("growfs_growfs_1"))
        raise
    finally:
        compose("down", "--volumes", "--timeout", "90")
    assert not mounts_in(shared)
    assert "growfs" not in podman("ps", "-a", "--format={{.Names}}")


TRAINER = documents(KUBERNETES / "node/trainer.yaml")


def play(shared: Path, name: str, manifests: list[Yaml]) -> None:
    """Start the pod of manifests by `podman kube play`.

    Podman 4.3 runs neither DaemonSets nor Jobs nor native sidecars (here: containers that the others wait for). It
    expands no $(VARIABLE) of a config map, and probes by a curl that the image does not have.
    """
    manifests = copy.deepcopy(manifests)
    configs = [manifest for manifest in manifests if manifest["kind"] == "ConfigMap"]
    for config in configs:
        config["data"] |= STORE | {"URL": URL}
    (spec,) = filter(None, map(pod_of, manifests))
    for container in containers_of(spec):
        container["args"] = [word.replace("$(URL)", URL) for word in container.get("args", [])]
        for probe in ("livenessProbe", "readinessProbe"):
            container.pop(probe, None)
    sidecars = [one for one in spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
    if sidecars:
        spec["initContainers"] = [one for one in spec["initContainers"] if one not in sidecars]
        for container in spec["containers"]:
            (until_ready,) = TRAINER[0]["spec"]["initContainers"][0]["args"]
            container["command"][-1] = f"{until_ready}; {container['command'][-1]}"
        spec["containers"] += sidecars
    for volume in spec["volumes"]:
        path = volume.get("hostPath", {}).get("path", "")
        if "emptyDir" in volume:
            (folder := shared / f"{name}-{volume['name']}").mkdir()
            folder.chmod(0o777)  # as the kubelet makes it; podman's belongs to the user of the image
            volume["hostPath"] = {"path": str(folder), "type": "Directory"}
            del volume["emptyDir"]
        elif path.startswith("/var/lib/growfs/"):
            volume["hostPath"]["path"] = path.replace("/var/lib/growfs", str(shared))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    podman("kube", "play", f"--network={NETWORK}", "-", text=yaml.safe_dump_all([*configs, pod]))


def test_a_trainer_in_a_pod_reads_the_mount_of_the_daemonset(shared: Path, files: dict[str, bytes]) -> None:
    size = str(sum(map(len, files.values())))
    play(shared, "node", OVERLAYS["node"])
    play(shared, "trainer", TRAINER)
    assert exit_code("trainer-trainer") == 0
    assert logs("trainer-trainer").strip() == size
    assert "passthrough engine" in logs("node-growfs")
    podman("pod", "stop", "--time=90", "node")
    assert exit_code("node-growfs") == 0
    assert not mounts_in(shared)


def test_a_sidecar_mounts_for_the_trainer_of_its_pod(shared: Path, files: dict[str, bytes]) -> None:
    play(shared, "sidecar", OVERLAYS["sidecar"])
    assert exit_code("sidecar-trainer", 60) == 0
    assert logs("sidecar-trainer").split()[-1] == str(sum(map(len, files.values())))
    podman("stop", "--time=90", "sidecar-growfs")  # a stop of the pod may end its process 1 first
    assert exit_code("sidecar-growfs") == 0


def test_a_pod_without_privileges_mounts_for_itself(work: Path, shared: Path, files: dict[str, bytes]) -> None:
    """Podman has no device plugins. A mount of its program's own ends with the pod, at SIGTERM at once."""
    manifests = copy.deepcopy(OVERLAYS["unprivileged"])
    (spec,) = filter(None, map(pod_of, manifests))
    (container,) = spec["containers"]
    spec["volumes"].append({"name": "fuse", "hostPath": {"path": str(work / "fuse"), "type": "CharDevice"}})
    container["volumeMounts"].append({"name": "fuse", "mountPath": "/dev/fuse"})
    container["command"][-2:-2] = AS_IN_DOCKER
    play(shared, "first", manifests)
    assert exit_code("first-trainer", 60) == 0
    assert "libfuse engine" in logs("first-trainer")
    assert logs("first-trainer").split()[-1] == str(sum(map(len, files.values())))
    container["args"][0] += " && sleep 1000"
    play(shared, "second", manifests)
    until(lambda: "libfuse engine" in logs("second-trainer"))
    podman("kill", "--signal=TERM", "second-trainer")
    assert exit_code("second-trainer") == 143
