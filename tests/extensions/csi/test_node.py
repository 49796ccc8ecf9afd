"""Volumes of pods: who shares a mount, what ends it, and what survives if the driver or a daemon is killed."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest

from growfs.daemon.control_client import daemon_pid
from growfs.extensions.csi.node import Claims, VolumeBusy
from growfs.fuse.mounting import mounted_at
from tests.cli.test_namespaces import (
    AT_EMPTY_PATH,
    MOUNT_ATTR_IDMAP,
    OPEN_TREE_CLONE,
    SYS_MOUNT_SETATTR,
    SYS_OPEN_TREE,
    system_call,
    user_namespace,
)
from tests.extensions.csi.kubelet import Kubelet, code_of
from tests.fuse.killed_daemon import KEEPS_A_LOOKUP_WAITING, reader_of_a_killed_daemon
from tests.harness import files_below, until, usable_engine
from tests.store_servers import HUB_TOKEN, hub_server

KEYS = {"AWS_ACCESS_KEY_ID": "AKIA-0815", "AWS_SECRET_ACCESS_KEY": "hunter2-secret"}
FILES = {f"class{directory}/{number:04}.bin" for directory in range(2) for number in range(3)}


def daemon_of(target: Path) -> int:
    """The process that serves a mount."""
    row = mounted_at(target)
    assert row
    return daemon_pid(row.cache)


def environment_of(target: Path) -> bytes:
    """The environment of a worker of a mount."""
    daemon = daemon_of(target)
    worker, *_ = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    return Path(f"/proc/{worker}/environ").read_bytes()


def kill_daemon(target: Path) -> None:
    """SIGKILL it, and return when the kernel has seen its end."""
    os.kill(daemon_of(target), 9)
    until(lambda: is_dead(target))


def is_dead(target: Path) -> bool:
    try:
        os.statvfs(target)
    except OSError:
        return True
    return False


def assert_hidden(kubelet: Kubelet, target: Path) -> None:
    """Nothing that a user of the node or a pod may read has the secret of a volume."""
    shown = [kubelet.log, *kubelet.state.rglob("*"), *(target / ".growfs").iterdir()]
    shown += [path for path in kubelet.growfs.cache_dir.rglob("*") if "files" not in path.parts]
    shown += [Path("/proc/self/mountinfo"), *Path("/proc").glob("[0-9]*/cmdline")]
    for path in shown:
        with suppress(OSError):  # a socket, or a process that has ended
            assert path.is_dir() or b"hunter2-secret" not in path.read_bytes(), path
    assert sum(b"growfs: " in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())


def test_pods_share_a_mount_if_they_ask_for_the_same(kubelet: Kubelet) -> None:
    """And only the daemon of a volume gets its secret."""
    kubelet.restart(forks=False)
    with ThreadPoolExecutor() as pool:  # all at once, as the pods of a job start
        targets = list(pool.map(lambda pod: kubelet.publish(pod, kubelet.remote), "abcdefgh"))
    assert kubelet.daemons() == 1
    assert {daemon_of(target) for target in targets} == {daemon_of(targets[0])}
    for group in kubelet.groups():
        inside = set(map(int, (group / "cgroup.procs").read_text().split()))
        assert {daemon_of(targets[0]), *kubelet.processes()} < inside, "and workers"
    other = kubelet.publish("other", kubelet.remote, secrets=KEYS, seed="1")
    assert kubelet.daemons() == 2
    assert daemon_of(other) != daemon_of(targets[0])
    assert b"\0AWS_SECRET_ACCESS_KEY=hunter2-secret\0" in environment_of(other)
    assert b"hunter2-secret" not in environment_of(targets[0])
    assert_hidden(kubelet, other)
    assert files_below(targets[0]) == files_below(other) == FILES
    usage = kubelet.stats("a").usage
    assert [(each.total, each.used, each.available) for each in usage] == [(60_000, 60_000, 0), (6, 6, 0)]
    with pytest.raises(OSError, match="Read-only file system"):
        (targets[0] / "new").touch()
    for pod in "abcdefg":
        kubelet.unpublish(pod)
    assert kubelet.daemons() == 2
    assert files_below(targets[7]) == FILES
    kubelet.unpublish("h")
    kubelet.unpublish("other")
    assert kubelet.daemons() == 0
    until(lambda: kubelet.processes() == [])
    until(kubelet.has_removed_groups)
    assert len(list(kubelet.growfs.cache_dir.glob("*/*/files/class0/0000.bin"))) == 2, "their caches stay"


INLINE = {"csi.storage.k8s.io/ephemeral": "true"}
CHOOSES = INLINE | {"endpoint_url": "http://pod.example"}
REFUSED: list[tuple[dict[str, str], dict[str, str], str]] = [
    ({"cache_sise": "1GB"}, {}, "cache-sise: no such option of a volume; did you mean cache-size?"),
    ({"cache_size": "much"}, {}, "--cache-size: "),
    ({"exact": "yes"}, {}, "--exact: 'yes': expected true or false"),
    ({"url": ""}, {}, "the volume has no url"),
    ({}, {"LD_PRELOAD": "/x.so"}, "the secret contains the key LD_PRELOAD"),
    (INLINE, {}, "may be on the node itself"),
    (INLINE | {"url": "py:os:getcwd"}, {}, "may be on the node itself"),
    (INLINE | {"url": "s3::file:///etc"}, {}, "may be on the node itself"),
    (INLINE | {"url": "s3://b", "producer": "x:y"}, {}, "producer: affects the node itself"),
    (INLINE | {"url": "s3://b", "members": "x.py:y"}, {}, "members: affects the node itself"),
    (INLINE | {"url": "s3://b", "members": "tar", "min_free": "0"}, {}, "min-free: affects the node itself"),
    (CHOOSES | {"url": "s3://b"}, {}, "endpoint-url: chooses the server"),
    (CHOOSES | {"url": "s3://b"}, {"AWS_REGION": "us-east-1"}, "needs a nodePublishSecretRef with AWS_ACCESS_KEY_ID"),
    (CHOOSES | {"url": "hf://datasets/a/b"}, {"HF_TOKEN": "\n"}, "needs a nodePublishSecretRef with HF_TOKEN, or anon"),
    (CHOOSES | {"url": "hf://datasets/a/b", "anon": "false"}, KEYS, "endpoint-url: chooses the server"),
    (CHOOSES | {"url": "gs://b"}, {"HF_TOKEN": "hf_own"}, 'the volume needs anon: "true"'),
    (CHOOSES | {"url": "az://b"}, {}, "endpoint-url: chooses the server"),
    (
        INLINE | {"url": "az://b"},
        {"AZURE_STORAGE_ACCOUNT_NAME": "host/x"},
        "AZURE_STORAGE_ACCOUNT_NAME: chooses the server",
    ),
]
"""(attributes of a volume, its secret, the error)"""


def test_what_a_pod_may_not_ask_for_and_why_a_mount_fails(kubelet: Kubelet) -> None:
    for attributes, secrets, expected in REFUSED:
        code, message = code_of(partial(kubelet.publish, "a", kubelet.remote, secrets, **attributes))
        assert (code, expected in message) == (grpc.StatusCode.INVALID_ARGUMENT, True), message
    code, message = code_of(lambda: kubelet.publish("a", kubelet.remote / "none"))
    assert (code, "no such file or folder" in message) == (grpc.StatusCode.INTERNAL, True), message
    assert (kubelet.daemons(), kubelet.target("a").exists()) == (0, False)
    until(kubelet.has_removed_groups)


ON_NODE = "secret-of-the-node"


def test_a_server_that_a_pod_chooses_gets_no_credentials_of_the_driver(kubelet: Kubelet) -> None:
    """Nor does the command line of the driver show them, which every user of the node could read."""
    home = kubelet.folder / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws/config").write_text(f"[default]\naws_access_key_id = {ON_NODE}\naws_secret_access_key = {ON_NODE}\n")
    (home / ".cache/huggingface").mkdir(parents=True)
    (home / ".cache/huggingface/token").write_text(ON_NODE)
    (home / ".netrc").write_text(f"default login node password {ON_NODE}\n")
    (home / ".netrc").chmod(0o600)
    variables = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN")
    kubelet.growfs.env |= dict.fromkeys(variables, ON_NODE) | {"HOME": str(home)}
    kubelet.flags += ["--storage-option", f"token={ON_NODE}", "--storage-option", f"headers.Authorization={ON_NODE}"]
    kubelet.restart(forks=False)
    assert kubelet.command_line.startswith("growfs csi --state-dir")
    assert ON_NODE not in kubelet.command_line
    with hub_server() as hub:
        hub.files, hub.is_private = {"0.bin": b"content"}, True
        data_set, own = f"hf://datasets/{hub.name}", {"HF_TOKEN": HUB_TOKEN}
        chooses = INLINE | {"endpoint_url": hub.url}
        target = kubelet.publish("a", data_set, own, **chooses)
        assert (target / "0.bin").read_bytes() == b"content"
        environment = environment_of(target)
        assert f"\0HF_TOKEN={HUB_TOKEN}\0".encode() in environment
        assert ON_NODE.encode() not in environment
        inherited = dict(entry.split(b"=", 1) for entry in environment.split(b"\0") if entry)
        assert inherited[b"HOME"] == inherited[b"TMPDIR"], "libraries find credentials in a home folder"
        hub.requests.clear()
        kubelet.restart()
        volumes = (
            (data_set, None, chooses | {"anon": "true"}),
            ("s3://bucket", KEYS, chooses),
            ("gs://bucket", None, chooses | {"anon": "true"}),
            (f"{hub.url}/folder/", None, INLINE),
        )
        with ThreadPoolExecutor() as pool:  # the hub refuses all of them
            for pod, (url, secret, more) in enumerate(volumes):
                pool.submit(code_of, partial(kubelet.publish, str(pod), url, secret, **more))
        paths = " ".join(path for _, path, _ in hub.requests)
        assert all(part in paths for part in ("/api/datasets", "/bucket?list", "/storage/v1", "/folder/")), paths
        assert any(KEYS["AWS_ACCESS_KEY_ID"] in headers.get("Authorization", "") for _, _, headers in hub.requests)
        assert ON_NODE not in str(hub.requests)
        kubelet.unpublish("a")


def call_sequence(kubelet: Kubelet) -> list[Callable[[], object]]:
    """The calls for two pods that share a volume, some of them repeated."""
    return [
        lambda: kubelet.publish("a", kubelet.remote),
        lambda: kubelet.publish("a", kubelet.remote),
        lambda: kubelet.publish("b", kubelet.remote),
        lambda: kubelet.stats("a"),
        lambda: kubelet.unpublish("a"),
        lambda: kubelet.unpublish("a"),
        lambda: kubelet.publish("b", kubelet.remote),
        lambda: kubelet.unpublish("b"),
    ]


def test_the_driver_is_killed_between_any_two_calls(kubelet: Kubelet) -> None:
    daemons = []
    for call in call_sequence(kubelet):
        call()
        kubelet.restart()
        daemons.append(kubelet.daemons())
        for pod in "ab":
            assert not mounted_at(kubelet.target(pod)) or files_below(kubelet.target(pod)) == FILES
    assert daemons == [1] * 7 + [0]
    until(lambda: kubelet.processes() == [])
    assert list(kubelet.target("a").parent.iterdir()) == []


def in_background(call: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        with suppress(grpc.RpcError):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def kill_during(kubelet: Kubelet, call: Callable[[], object], after_s: float) -> None:
    """SIGKILL the driver during a call, start it, and repeat the call until it succeeds, as kubelet does."""

    def succeeds() -> bool:
        try:
            call()
        except grpc.RpcError:
            return False
        return True

    calling = in_background(call)
    time.sleep(after_s)
    kubelet.kill()
    calling.join()
    kubelet.start()
    until(succeeds)


def test_the_driver_is_killed_while_it_mounts(kubelet: Kubelet) -> None:
    kubelet.restart(forks=False)
    kill_during(kubelet, lambda: kubelet.publish("a", kubelet.remote), 0.4)
    assert kubelet.daemons() == 1
    assert files_below(kubelet.target("a")) == FILES
    kubelet.unpublish("a")
    assert kubelet.daemons() == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30))
def test_the_driver_is_killed_during_any_call(kubelet: Kubelet, seed: int) -> None:
    kubelet.restart(forks=False)
    generator = random.Random(seed)
    for call in call_sequence(kubelet):
        kill_during(kubelet, call, generator.uniform(0, 2) ** 3 / 4)
        for pod in "ab":
            assert not mounted_at(kubelet.target(pod)) or files_below(kubelet.target(pod)) == FILES
    assert kubelet.daemons() == 0
    until(lambda: kubelet.processes() == [])


def test_a_pod_is_deleted_before_training_can_start(kubelet: Kubelet) -> None:
    publish = partial(kubelet.publish, "a", kubelet.remote, bandwidth="1KB/s")
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(code_of, publish)
        until(lambda: kubelet.daemons() == 1)
        code, message = code_of(publish)
        assert (code, "still running" in message) == (grpc.StatusCode.ABORTED, True)
        kubelet.unpublish("a")
    code, message = calling.result()
    assert (code, "the pod was deleted" in message) == (grpc.StatusCode.INTERNAL, True), message
    until(lambda: kubelet.processes() == [])
    assert (kubelet.daemons(), kubelet.target("a").exists()) == (0, False)


@pytest.mark.parametrize("verb", ["publish", pytest.param("unpublish", marks=pytest.mark.long)])
def test_a_killed_daemon_that_the_kernel_waits_for_is_replaced_or_removed(kubelet: Kubelet, verb: str) -> None:
    kubelet.kill()
    folder = kubelet.folder / "setup"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(KEEPS_A_LOOKUP_WAITING)
    kubelet.prefix = ["env", f"PYTHONPATH={folder}"]
    kubelet.start()
    target = kubelet.publish("a", kubelet.remote)
    with reader_of_a_killed_daemon(target, and_its_processes=True) as reader:
        if verb == "publish":
            assert files_below(kubelet.publish("a", kubelet.remote)) == FILES
        kubelet.unpublish("a")
        assert reader.wait(30) == 1
    assert kubelet.daemons() == 0


def test_a_daemon_that_died_is_replaced_for_all_its_pods(kubelet: Kubelet) -> None:
    targets = [kubelet.publish(pod, kubelet.remote) for pod in "ab"]
    subpath = kubelet.folder / "pods/a/volume-subpaths"
    subpath.mkdir()
    subprocess.run(["mount", "--bind", targets[0] / "class0", subpath], check=True)
    kill_daemon(targets[0])
    condition = kubelet.stats("a").volume_condition
    assert (condition.abnormal, "the daemon ended" in condition.message) == (True, True)
    kubelet.kill()
    kubelet.start()
    kubelet.publish("c", kubelet.remote)
    assert [files_below(kubelet.target(pod)) for pod in "abc"] == [FILES] * 3
    assert (kubelet.daemons(), kubelet.stats("a").volume_condition.abnormal) == (1, False)
    assert len(files_below(subpath)) == 3
    subprocess.run(["umount", "-l", subpath, subpath], check=True)
    kill_daemon(targets[0])
    for pod in "abc":
        kubelet.unpublish(pod)
    assert kubelet.daemons() == 0
    assert not any(kubelet.target(pod).exists() for pod in "abc")


def test_a_pod_with_users_of_its_own(kubelet: Kubelet, tmp_path: Path) -> None:
    """The container runtime copies the mount for a pod with hostUsers: false, and maps its owners."""
    engine = usable_engine("passthrough", tmp_path)
    target = kubelet.publish("a", kubelet.remote, engine=engine)
    with ExitStack() as stack:
        namespace = stack.enter_context(user_namespace(first_uid=100_000))
        mapped = system_call(SYS_OPEN_TREE, -1, bytes(target), OPEN_TREE_CLONE | os.O_CLOEXEC)
        stack.callback(os.close, mapped)
        attributes = struct.pack("QQQQ", MOUNT_ATTR_IDMAP, 0, 0, namespace)
        system_call(SYS_MOUNT_SETATTR, mapped, b"", AT_EMPTY_PATH, attributes, len(attributes))
        assert os.stat("class0/0000.bin", dir_fd=mapped).st_uid == 100_000
        file = os.open("class0/0000.bin", os.O_RDONLY, dir_fd=mapped)
        stack.callback(os.close, file)
        assert os.read(file, 20_000) == (kubelet.remote / "class0/0000.bin").read_bytes()


def test_a_name_is_held_by_one_request_at_a_time() -> None:
    claims, order = Claims(), []

    def wait() -> None:
        with claims.hold("a", wait_s=10):
            order.append("second")

    with claims.hold("a"), claims.hold("b"):
        with pytest.raises(VolumeBusy), claims.hold("a"):
            pass
        waiting = threading.Thread(target=wait)
        waiting.start()
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]
