"""What the report shows: gaps, coverage, bounded numbers of bars and directories, whatever the history."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from growfs.cache.database import Database
from growfs.cache.schema import set_meta
from growfs.errors import GrowfsError
from growfs.extensions.report.charts import BARS_MAX, GENERATIONS_MAX, POINTS_MAX, chart_data
from growfs.extensions.report.figures import DIRECTORIES_MAX, OPENS_BARS, Directory, Figures, read
from growfs.extensions.report.page import Report
from growfs.status_and_metrics import MountState
from tests.unit import test_history
from tests.unit.test_history import insert

NOW = 1_700_000_000
HOUR_S = 3600
MOUNT = {"version": "1", "url": "s3://b/<i>&x", "mountpoint": "/mnt", "cache_dir": "/c", "engine": "libfuse"}
MOUNT |= {"engine_reason": "no passthrough"}
FIRST = test_history.FIRST | {"listed_files": 1, "share_files": 100}


class Cache:
    """A cache with a history that a test writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path / "catalog.sqlite")
        settings = json.dumps({**MOUNT, "options": {"--cache-size": "1 KB"}})
        self.write(lambda writer: set_meta(writer, "mount", settings))

    def write(self, function: Callable[[sqlite3.Connection], object]) -> None:
        """Write to the database."""
        self.database.write_now(function)

    def add(self, uptime_s: int, at: int, figures: dict[str, Any] = FIRST) -> None:
        """Add a row to the history, so many seconds after NOW."""
        self.write(lambda writer: insert(writer, uptime_s, NOW + at, figures))

    def add_directory(self, name: str, files: int, cached: int, opens: int) -> None:
        """Add a directory with files, of which the first are cached, and opened so often."""

        def write(writer: sqlite3.Connection) -> None:
            node = "INSERT INTO node (parent, name, is_dir, size) VALUES (?, ?, ?, ?)"
            folder = writer.execute(node, (1, name, 1, None)).lastrowid
            for number in range(files):
                id = writer.execute(node, (folder, f"{number}", 0, 100)).lastrowid
                if number < cached:
                    resident = (id, folder, "bin", id, id, 1, 100, id, 1, "")
                    writer.execute(
                        "INSERT INTO resident"
                        " (id, parent, suffix, seq, queue_position, opened, bytes, ino, file_mtime_ns, digest)"
                        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        resident,
                    )
                    writer.execute("INSERT INTO usage VALUES (?, 1, ?)", (id, opens))

        self.write(write)

    def read(self, last_s: float | None = None) -> Figures:
        """The figures for the report."""
        return read(self.path, last_s)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(tmp_path)
    yield cache
    cache.database.close()


def test_a_gap_is_a_gap_and_no_line_crosses_it(cache: Cache) -> None:
    for uptime_s, at in ((0, 0), (60, 60), (120, HOUR_S), (180, HOUR_S + 60)):
        cache.add(uptime_s, at)
    data = chart_data(cache.read())
    assert data["gaps"] == [{"t": 1000 * (NOW + 60), "t2": 1000 * (NOW + HOUR_S)}]
    assert [point["part"] for point in data["points"]] == [0, 0, 1, 1]
    assert [(state["t"], state["t2"]) for state in data["states"]] == [
        (1000 * NOW, 1000 * (NOW + 60)),
        (1000 * (NOW + HOUR_S), 1000 * (NOW + HOUR_S + 60)),
    ]


def test_a_full_cache_is_called_full_and_every_state_has_a_color(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.report.page._library", lambda: "")
    for at, state in enumerate(MountState):
        cache.add(60 * at, 60 * at, FIRST | {"state": state.value})
    cache.add(3600, 3600, FIRST | {"state": "held"})
    data = json.loads(Report.of(cache.path).html.partition('id="data">')[2].partition("</script>")[0])
    labels = [state["state"] for state in data["states"]]
    assert labels[-1] == "full"
    assert len(labels) == len(MountState) + 1
    assert set(labels) == set(data["palette"])


def test_a_clock_that_was_set_back_is_drawn_without_a_negative_gap(cache: Cache) -> None:
    for uptime_s, at in ((0, HOUR_S), (60, HOUR_S + 60), (120, 0), (180, 60)):
        cache.add(uptime_s, at, FIRST | {"fetched_files": uptime_s})
    data = chart_data(cache.read())
    assert data["gaps"] == []
    assert [point["part"] for point in data["points"]] == [0, 0, 1, 1]
    assert sum(bar["arrived"] for bar in data["bars"]) == 180
    assert all(bar["t"] < bar["t2"] for bar in data["bars"])


def test_bars_add_up_to_what_happened(cache: Cache) -> None:
    for number in range(500):
        figures = {"fetched_files": 3 * number, "evicted_files": 2 * number, "missed_files": number}
        cache.add(7 * number, 7 * number, FIRST | figures | {"wait_ms": 10 * number})
    bars = chart_data(cache.read())["bars"]
    sums = [round(sum(bar[name] for bar in bars), 3) for name in ("arrived", "evicted", "misses", "wait_s")]
    assert sums == [3 * 499, -2 * 499, 499, 4.99]
    assert 10 < len(bars) <= BARS_MAX + 1


def test_a_long_history_gives_a_bounded_page(cache: Cache) -> None:
    def write(writer: sqlite3.Connection) -> None:
        for number in range(9000):
            insert(writer, number, NOW + 2 * number * HOUR_S, FIRST | {"generation": number})

    cache.write(write)
    data = chart_data(cache.read())
    assert len(data["states"]) <= POINTS_MAX
    assert len(data["generations"]) <= GENERATIONS_MAX
    assert len(data["bars"]) <= BARS_MAX + 1
    assert len(data["points"]) <= 2 * POINTS_MAX


def test_coverage_is_compared_with_what_the_fetches_could_have_shown(cache: Cache) -> None:
    cache.add(0, 0, FIRST | {"files_seen": 10, "fetched_files": 4})
    cache.add(60, 60, FIRST | {"files_seen": 30, "fetched_files": 44})
    points = chart_data(cache.read())["points"]
    assert [(point["seen"], point["best"]) for point in points] == [(0.1, 0.1), (0.3, 0.5)]


def test_only_the_last_part_of_the_history_is_shown(cache: Cache) -> None:
    for at in (0, HOUR_S, 2 * HOUR_S):
        cache.add(at + 1, at)
    assert [row["at"] - NOW for row in cache.read(last_s=HOUR_S).history] == [HOUR_S, 2 * HOUR_S]


@pytest.mark.parametrize(("most", "bars"), [(0, [(0, 0, 3)]), (2, [(0, 0, 0), (1, 1, 0), (2, 2, 3)])])
def test_opens_are_counted_exactly_if_there_are_few(cache: Cache, most: int, bars: list[tuple[int, int, int]]) -> None:
    cache.add(0, 0)
    cache.add_directory("a", 3, 3, most)
    assert cache.read().opens == bars


def test_one_file_that_is_opened_all_the_time_does_not_hide_the_others(cache: Cache) -> None:
    cache.add(0, 0)
    cache.add_directory("a", 99, 99, 5)
    cache.add_directory("b", 1, 1, 10**6)
    opens = cache.read().opens
    assert sum(files for _, _, files in opens) == 100
    assert len(opens) == OPENS_BARS + 1
    assert opens[-1][1:] == (None, 1)


def test_the_worst_and_the_best_of_many_directories_are_shown(cache: Cache) -> None:
    cache.add(0, 0)
    for number in range(40):
        cache.add_directory(f"class{number:02}", 40, number, 2)
    figures = cache.read()
    half = DIRECTORIES_MAX // 2
    expected = [*range(half), *range(40 - half, 40)]
    assert figures.directories_all == 40
    assert figures.directories == [
        Directory(f"class{number:02}", 40, number, number, 2 * number) for number in expected
    ]


def test_folders_are_no_files_of_a_directory(cache: Cache) -> None:
    cache.add(0, 0)
    cache.add_directory("a", 2, 2, 1)
    cache.write(lambda writer: writer.execute("INSERT INTO node (parent, name, is_dir) VALUES (1, 'readme', 0)"))
    assert cache.read().directories == [Directory("", 1, 0, 0, 0), Directory("a", 2, 2, 2, 2)]
    assert chart_data(cache.read())["directories"][0]["path"] == "/"


def test_an_empty_cache_and_a_single_row_will_do(cache: Cache) -> None:
    cache.add(1, 0, FIRST | {"files": 0, "files_seen": 0, "share_files": 0})
    data = chart_data(cache.read())
    assert data["opens"] == data["directories"] == data["bars"] == []


def test_opens_that_waited_are_drawn_where_there_were_any(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.report.page._library", lambda: "")
    cache.add(1, 0)
    cache.add(2, 1)
    assert 'id="plot-misses"' not in Report.of(cache.path).html
    cache.add(3, 2, FIRST | {"missed_files": 1, "wait_ms": 10})
    assert 'id="plot-misses"' in Report.of(cache.path).html


def test_names_cannot_add_to_the_page(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.report.page._library", lambda: "const end = '</script>';")
    cache.add(0, 0)
    cache.add_directory("</script><script>alert(1)</script>", 1, 1, 1)
    mount = {**MOUNT, "mountpoint": "/no text: \udcff", "options": {"--group": "<b>"}}
    cache.write(lambda writer: set_meta(writer, "mount", json.dumps(mount)))
    report = Report.of(cache.path)
    with pytest.raises(GrowfsError, match="No such file or directory"):
        report.save(tmp_path / "missing/page.html")
    report.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "alert(1)" in page
    assert page.count("</script>") == page.count("<script") == 3
    assert "<i>&x" not in page
    assert "<b>" not in page
    assert "mounted on /no text: ?," in page


def test_without_the_extra_it_says_what_to_install(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import takes seconds, so what is neither a mount nor a cache is refused before."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    (tmp_path / "other").mkdir()
    with pytest.raises(GrowfsError, match="growfs is not mounted there"):
        Report.of(tmp_path / "other")
    cache.add(0, 0)
    with pytest.raises(GrowfsError, match=r"pip install 'growfs\[report\]'"):
        Report.of(cache.path)


def test_a_history_that_cannot_be_read_is_one_line(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(GrowfsError, match="has no history yet"):
        cache.read()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(GrowfsError, match="its history cannot be read"):
        read(other)
    (other / "catalog.sqlite").write_bytes(b"this is no database, and longer than the header of one" * 20)
    with pytest.raises(GrowfsError, match="is not a database"):
        read(other)


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    shown = Report('<p title="x">&</p>')._repr_html_()
    assert 'srcdoc="&lt;p title=&quot;x&quot;&gt;&amp;&lt;/p&gt;"' in shown
