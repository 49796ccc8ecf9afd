"""What growfs top draws, from what it knows, at every size of the screen."""

from __future__ import annotations

import io
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from growfs.cache.database import Database
from growfs.errors import GrowfsError
from growfs.extensions.top.app import after
from growfs.extensions.top.view import Shown, TopPage, bar, frame, graph, histogram
from growfs.extensions.top.watch import (
    DirectoryShare,
    Event,
    Rates,
    Survey,
    Watch,
    changes,
    earlier,
    find_new,
    logged,
    rates,
)
from growfs.status_and_metrics import ExactStatus, MountState
from tests.unit.test_history import FIRST, insert
from tests.unit.test_status_text import READER, status
from tools.pictures import picture

UP, PAGE_DOWN, HOME = "\x1b[A", "\x1b[6~", "\x1b[H"


def watch(**changed: Any) -> Watch:
    """A mount of which everything is known."""
    watch = Watch(Path("/mnt/train"))
    watch.status = status(**{"readers": [READER], **changed})
    watch.rates.extend([Rates(10.0**7, 100.0, 10.0**8)] * 100)
    watch.survey = Survey({0: 1, 3: 2}, (DirectoryShare("cat", 600, 200, 20, 300), DirectoryShare("", 400, 50, 0, 75)))
    return watch


def lines(shown: Shown, *watches: Watch, width: int = 80, height: int = 24) -> list[str]:
    """The rows of a frame."""
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, force_terminal=True)
    console.print(frame(watches, shown), height=height)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def text(page: TopPage, *watches: Watch, **size: int) -> str:
    return "\n".join(lines(Shown(page), *watches, **size))


def test_the_overview_shows_the_figures() -> None:
    shown = text(TopPage.OVERVIEW, watch(miss__waiting=1))
    for figure in (
        "/mnt/train",
        "filling the cache, 1 minute and 30 seconds left",
        "generation 3: 200 files listed",
        "3.0 GB of 5.0 GB",
        "20% of 10.0 GB, 1,000 files",
        "25% cached at some time, pass 1",
        "1.50 per file",
        "2, waited 1.2 s, 0.62 s each",
        "1 waits now",
        "fetched 10.0 MB/s",
        "opened 100 files/s",
        "100.0 MB/s by size",
        "50 of 200",
        "500.0 MB",
        "python 4711: listed once",
    ):
        assert figure in shown
    assert "3 wait now" in text(TopPage.OVERVIEW, watch(miss__waiting=3))


def test_the_overview_names_the_part_of_a_pass() -> None:
    zeros = {field.name.removesuffix("_"): "" if field.type == "str" else 0 for field in fields(ExactStatus)}
    exact = zeros | {"group": None, "pass": 3, "part": 4, "parts": 17}
    assert "pass 3, part 4 of 17: 200 files listed" in text(TopPage.OVERVIEW, watch(exact=exact))
    (event,) = changes(status(exact=exact), status(exact=exact | {"part": 5}, generation=4))
    assert event.text == "pass 3, part 5 of 17: 200 files listed"


def test_a_narrow_screen_shows_a_long_advice_whole_and_how_to_quit() -> None:
    advice = "listed once 2 hours ago, has opened its 200 files 3.1 times, and sees nothing new until it lists again"
    shown = text(TopPage.OVERVIEW, watch(readers=[READER | {"advice": advice}]), watch())
    assert "lists again" in shown
    assert shown.index("listed once") < shown.index("50 of 200")
    for page in TopPage:
        assert "q quit" in text(page, watch(), watch())


def test_a_wide_screen_does_not_stretch_the_bars() -> None:
    rows = lines(Shown(TopPage.OVERVIEW), watch(), width=200)
    (cache,) = (row for row in rows if "3.0 GB of 5.0 GB" in row)
    assert sum(cache.count(character) for character in "▆▁") == 60


def test_the_overview_says_what_status_warns_of() -> None:
    outage = {
        "since": 0.0,
        "why": "s3://bucket/train: cannot reach the server at https://s3.example",
        "next_try_s": 3.0,
    }
    shown = text(TopPage.OVERVIEW, watch(state="waiting", outage=outage, warnings=["--freeze matches no file"]))
    assert "next try in 3 seconds" in " ".join(shown.split()), "it takes two rows"
    assert "--freeze matches no file" in shown
    assert "python 4711" in shown


def test_each_page_has_a_key_and_shows_what_it_is_for() -> None:
    known = watch()
    known.survey = Survey(known.survey.opens, known.survey.directories, ((7, 0.0),))
    for page, expected in {
        TopPage.READERS: "python 4711",
        TopPage.DIRECTORIES: "cat",
        TopPage.EVENTS: "generation 7 begins",
    }.items():
        assert after(page.value, Shown(), 1) == Shown(page)
        assert expected in text(page, known)
    assert "no process is reading" in text(TopPage.READERS, watch(readers=[]))
    assert "readers of plain files cannot be seen" in text(TopPage.READERS, watch(readers=[], engine="folder"))


def test_directories_show_their_balance() -> None:
    (cat,) = [line for line in lines(Shown(TopPage.DIRECTORIES), watch()) if "cat" in line]
    assert cat.split()[1:4] == ["cat", "600", "200"]
    assert cat.split()[-4:] == ["33%", "20", "1.50", "│"]


def test_what_is_longer_than_the_screen_is_scrolled() -> None:
    known = watch()
    known.survey = Survey({}, tuple(DirectoryShare(f"d{n:03}", 10, 5, 0, 5) for n in range(100)))
    shown = Shown(TopPage.DIRECTORIES)
    assert "d000" in "\n".join(lines(shown, known))
    for _ in range(3):
        shown = after(PAGE_DOWN, shown, 1)
    page = "\n".join(lines(shown, known))
    assert "d000" not in page
    assert "d030" in page
    assert "d099" in "\n".join(lines(Shown(TopPage.DIRECTORIES, row=10**6), known))
    assert after(HOME, shown, 1) == Shown(TopPage.DIRECTORIES)
    assert after(UP, Shown(TopPage.DIRECTORIES), 1) == Shown(TopPage.DIRECTORIES)


def test_several_mounts_are_switched_by_keys() -> None:
    other = Watch(Path("/mnt/other"))
    shown = after("\t", Shown(), 2)
    assert "asking the daemon" in "\n".join(lines(shown, watch(), other))
    assert after("\t", shown, 2) == Shown()
    assert after("p", Shown(), 2) == shown


def test_a_mount_that_is_gone_says_so_and_keeps_its_figures() -> None:
    known = watch()
    known.trouble = "/mnt/train: growfs is not mounted there; growfs list shows all mounts"
    shown = text(TopPage.OVERVIEW, known, width=140)
    assert "growfs is not mounted there" in shown
    assert "as of " in shown
    assert "3.0 GB of 5.0 GB" in shown


@pytest.mark.parametrize("page", TopPage)
def test_no_size_of_the_screen_fails(page: TopPage) -> None:
    known = [watch(), watch(state="waiting", outage={"since": 0.0, "why": "x: gone", "next_try_s": 3.0})]
    sizes = (1, 1), (2, 3), (5, 5), (12, 40), (300, 2), (40, 12), (79, 23), (80, 24), (140, 45), (400, 9)
    for width, height in sizes:
        for shown in (Shown(page), Shown(page, 1, 10**9)):
            rows = lines(shown, *known, width=width, height=height)
            assert len(rows) <= height
            assert max(map(len, rows)) <= width


def test_every_state_and_an_empty_mount_can_be_shown() -> None:
    outage = {"since": 0.0, "why": "x", "next_try_s": 0.0}
    for state in MountState:
        assert "●" in text(TopPage.OVERVIEW, watch(state=state.value, outage=outage))
    empty = Watch(Path("/mnt/train"))
    empty.status = status(
        remote__files=0, remote__bytes=0, remote__listed=False, coverage__files=0, cache__bytes=0, fetch__eta_s=None,
        generation=0,
    )  # fmt: skip
    for page in TopPage:
        assert text(page, empty)


def test_no_name_changes_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[31m\n[red]x[/red]"
    known = watch(readers=[READER | {"command": evil, "advice": evil}])
    known.survey = Survey({}, (DirectoryShare(evil, 1, 1, 0, 0),))
    known.seen.append(Event(0.0, "INFO", evil))
    gone = Watch(Path(evil))
    gone.trouble = evil
    for page in TopPage:
        shown = text(page, known, width=140)
        assert "[red]x" in shown
        assert not {"\x1b", "\x07"} & set(shown)
    shown = text(TopPage.OVERVIEW, gone)
    assert shown.count("[red]x") == 2
    assert not {"\x1b", "\x07"} & set(shown)


def test_a_bar_shows_every_share_above_none() -> None:
    parts = [(0.5, "a", ""), (0.0001, "b", ""), (0.0, "c", ""), (0.25, "d", "")]
    assert bar(parts, 20).plain == "a" * 10 + "b" + "d" * 4 + "▁" * 5
    assert bar([(7.0, "a", "")], 5).plain == "aaaaa"
    assert bar([], 3).plain == "▁▁▁"


def test_a_graph_has_its_latest_value_at_the_right() -> None:
    rows = [row.plain for row in graph([9, 0.0, 1.0, 8.0, 16.0], 5, 2, "")]
    assert rows == ["▁   █", "█▁▁██"]
    assert [row.plain for row in graph([0.0], 3, 1, "")] == ["  ▁"]


def test_files_are_shown_by_how_often_they_were_opened() -> None:
    assert histogram({0: 8, 1: 1, 3: 4}).plain.split() == ["0", "█", "1", "▁", "2", "▁", "3", "▄"]
    assert histogram({10: 1, 16: 2}).plain.split() == ["10-11", "▄", "12-13", "▁", "14-15", "▁", "16-17", "█"]
    assert histogram({}).plain == ""


def test_rates_are_those_between_two_statuses() -> None:
    before, now = status(fetch__bytes_total=0, opens__total=0), status(fetch__bytes_total=100, opens__total=4)
    assert rates(before, now, 2.0) == Rates(50.0, 2.0, 0.0)


def test_graphs_begin_with_the_history(tmp_path: Path) -> None:
    database = Database(tmp_path / "index.sqlite")

    def add(at: int, fetched_bytes: int, opens: int) -> None:
        figures = FIRST | {"fetched_bytes": fetched_bytes, "opens": opens}
        database.write_now(lambda writer: insert(writer, at, at, figures))

    add(100, 10**9, 0)
    add(700, 2 * 10**9, 50)
    add(702, 2 * 10**9, 60)
    add(732, 3 * 10**9, 60)
    database.close()
    known = earlier(database.path, 735.0)
    assert known == (*[Rates(0.0, 5.0)] * 2, *[Rates(0.0, 0.0)] * 28, *[Rates(5e8, 0.0)] * 2, *[Rates(0.0, 0.0)] * 3)
    assert earlier(database.path, 2000.0) == ()

    shown = watch()
    shown.rates.clear()
    shown.earlier = known
    assert "peak 5 files/s" in text(TopPage.OVERVIEW, shown, width=120)
    assert "peak 500.0 MB/s" in text(TopPage.OVERVIEW, shown, width=120)


def test_changes_of_the_status_are_events() -> None:
    before, now = status(), status(generation=4, state="complete", readers=[READER])
    texts = [event.text for event in changes(before, now)]
    assert texts == [
        "generation 4: 200 files listed",
        "complete: every file of the remote is cached",
        "python 4711 started reading",
    ]
    assert [event.text for event in changes(now, status(generation=4, state="complete"))] == [
        "python 4711 stopped reading"
    ]
    assert list(changes(None, now)) == []


def test_the_log_has_events_and_what_workers_printed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(
        b"cut\xff\n2026-01-02 03:04:05,678 WARNING not fetched: x\nprinted\n2026-13-45 25:61:61,000 ERROR no time\n"
    )
    (event,) = logged(log)
    assert (event.level, event.text) == ("WARNING", "not fetched: x")
    assert event.at % 1 == pytest.approx(0.678)
    assert list(logged(tmp_path / "none")) == []


def test_without_any_mount_there_is_nothing_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("growfs.extensions.top.watch.running", list)
    with pytest.raises(GrowfsError, match="no growfs mounts on this machine"):
        find_new(None, [])


def test_a_picture_is_an_svg() -> None:
    svg = picture([watch()], 100, 30)
    assert svg.startswith("<svg")
    assert "filling" in svg
