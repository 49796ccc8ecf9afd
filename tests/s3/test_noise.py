"""Mounts over links and stores as they are: each row of `tools/bench noise`, on a smaller scale."""

from __future__ import annotations

import pytest

from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, until
from tools.benchmarks.noisy_s3 import MODULUS, Noise, content, key, serving

PROBES = 100
"""Bytes that requests bring which ask whether the remote is away, one each."""
NOTHING_IS_CUT = "from growfs.remote.http import slow_streams; slow_streams.WINDOW_S = 1000"
"""Code for a mount. On a busy machine, some streams are slower than others, and what they bring is fetched twice."""


def mount(growfs: Growfs, url: str, *flags: str) -> None:
    growfs.env.update(AWS_ACCESS_KEY_ID="access", AWS_SECRET_ACCESS_KEY="secret")
    growfs.mount("s3://noise", "--endpoint-url", url, "--no-wait", *flags)


def is_whole(growfs: Growfs, number: int, noise: Noise) -> bool:
    data = (growfs.mountpoint / key(number)).read_bytes()
    pattern = content(number, 0, MODULUS)
    return data == (pattern * (noise.size // MODULUS + 1))[: noise.size]


def wait_for_all(growfs: Growfs, noise: Noise) -> None:
    growfs.run("wait", growfs.mountpoint, "--all", "--timeout", "100s")
    assert all(is_whole(growfs, number, noise) for number in range(0, noise.keys, max(1, noise.keys // 50)))


@pytest.mark.promise(3, 14)
@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(Noise(keys=300, size=2000, refused=0.01), marks=pytest.mark.long),
        Noise(keys=300, size=2000, refused=0.05),
        Noise(keys=3, size=20_000_000, refused=0.2),
    ],
    ids=["1 %", "5 %", "20 % of the parts"],
)
def test_a_store_that_refuses_some_requests_is_used_in_full(growfs: Growfs, noise: Noise) -> None:
    growfs.env[SETUP_VARIABLE] = NOTHING_IS_CUT
    with serving(noise) as (store, url):
        mount(growfs, url)
        wait_for_all(growfs, noise)
        counters, content_bytes = store.counters, noise.keys * noise.size
        assert counters.refused > 0.3 * noise.refused * noise.keys
        assert 0 <= counters.bytes - content_bytes <= PROBES, "no byte is sent twice because of a 503"
        fetch = growfs.status()["fetch"]
        assert (fetch["failed"], fetch["bytes_total"]) == (0, content_bytes)
        assert noise.refused > 0.1 or "asks for fewer requests" not in growfs.log()
        growfs.umount()


@pytest.mark.promise(3)
def test_a_stream_that_stalls_is_replaced_by_another(growfs: Growfs) -> None:
    noise = Noise(keys=3, size=20_000_000, connection_bytes_per_s=2_000_000, stalled=0.02)
    with serving(noise) as (store, url):
        mount(growfs, url)
        wait_for_all(growfs, noise)
        assert store.counters.stalled
        assert store.counters.bytes < 1.1 * noise.keys * noise.size
        assert "arrives too slowly; requesting it again" in growfs.log()
        assert growfs.status()["fetch"]["failed"] == 0
        growfs.umount()


@pytest.mark.promise(3)
def test_what_has_arrived_of_large_files_survives_an_outage(growfs: Growfs) -> None:
    noise = Noise(keys=3, size=8_000_000, connection_bytes_per_s=500_000)
    with serving(noise) as (store, url):
        mount(growfs, url)
        until(lambda: store.counters.bytes > noise.size / 8)
        store.away = "closed"
        until(lambda: growfs.status()["outage"] is not None)
        assert growfs.status()["cache"]["files"] == 0, "else the test is about fewer"
        store.away = None
        wait_for_all(growfs, noise)
        assert growfs.status()["fetch"]["bytes_total"] == noise.keys * noise.size
        assert "not fetched" not in growfs.log()
        growfs.umount()


@pytest.mark.promise(3)
def test_a_link_that_loses_its_packets_for_seconds_costs_hardly_a_byte(growfs: Growfs) -> None:
    noise = Noise(keys=3, size=8_000_000, connection_bytes_per_s=1_000_000, away_s=3, away_as=["late"], present_s=1)
    with serving(noise) as (store, url):
        mount(growfs, url)
        wait_for_all(growfs, noise)
        # A stream that a slow server starves is replaced, and the bytes in its socket are lost.
        assert store.counters.bytes < 1.1 * noise.keys * noise.size
        assert growfs.status()["fetch"]["failed"] == 0
        growfs.umount()


def test_what_others_have_is_listed_while_one_object_trickles(growfs: Growfs) -> None:
    growfs.env[SETUP_VARIABLE] = "from growfs.scheduler import admission; admission.LATE_S = 1"
    noise = Noise(keys=500, size=1000, slow_key=50)
    with serving(noise) as (_, url):
        mount(growfs, url)
        until(lambda: growfs.status()["cache"]["files"] >= noise.keys - 1)
        assert key(50) not in growfs.names()
        assert growfs.status()["fetch"]["late_file"] == key(50)
        assert "slowly; later files are listed first" in growfs.log()  # on a busy machine, others were late first
        growfs.umount()
