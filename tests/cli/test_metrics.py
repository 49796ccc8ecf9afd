"""--metrics-addr on a real mount."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness import Growfs, make_tree


def test_the_metrics_are_served_until_the_unmount(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=1, files=3)
    printed = growfs.mount(tmp_path / "remote", "--metrics-addr", "0").stdout
    url = growfs.status()["metrics_url"]
    assert f"{growfs.mountpoint}: metrics at {url}\n" in printed
    assert url.startswith("http://127.0.0.1:")
    with ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(connect(url))
        with urllib.request.urlopen(url, timeout=20) as response:
            families = {family.name: family for family in text_string_to_metric_families(response.read().decode())}
        assert families["growfs_cache_files"].samples[0].value == 3
        assert (growfs.mountpoint / "class0/0000.bin").read_bytes()
        growfs.umount()
        with pytest.raises(ConnectionRefusedError):
            connect(url)


def connect(url: str) -> socket.socket:
    host, _, port = url.split("/")[2].partition(":")
    return socket.create_connection((host, int(port)))
