"""`growfs report`: the page of a real mount, in a real browser."""

from __future__ import annotations

from pathlib import Path

from tests.browser import needs_browser, opened_in_browser
from tests.cli.support import WITHOUT_CHARTS
from tests.forkserver import SETUP_VARIABLE
from tests.harness import Growfs, make_tree, until


@needs_browser
def test_a_browser_draws_what_the_mount_did(growfs: Growfs, tmp_path: Path) -> None:
    make_tree(tmp_path / "remote", directories=2, files=3)
    (tmp_path / "remote/class0").rename(tmp_path / "remote/<script>document.title='hacked'<%2Fscript>")
    growfs.mount(tmp_path / "remote")
    growfs.run("wait", growfs.mountpoint, "--all")
    for path in sorted(growfs.mountpoint.rglob("*.bin")):
        path.read_bytes()
    until(lambda: growfs.status()["opens"]["mean"] == 1)
    page = tmp_path / "page.html"
    growfs.run("report", growfs.mountpoint, "-o", page)
    content = opened_in_browser(page.as_uri(), tmp_path / "profile")
    label = "directory: &lt;script&gt;document.title='hacked'&lt;%2Fscript&gt;; files: 3; cached now: 3;"
    assert f"{label} ever cached: 3; opens of each: 1.00" in content
    assert 'aria-label="opens: 1; files: 6; opened: 1"' in content
    assert "<title>growfs: " in content


def test_a_dead_mount_and_a_cache_have_a_report_too(growfs: Growfs, tmp_path: Path) -> None:
    growfs.env[SETUP_VARIABLE] = WITHOUT_CHARTS
    make_tree(tmp_path / "remote", directories=1, files=3)
    growfs.mount(tmp_path / "remote", "--turnover", "35%")
    growfs.run("wait", growfs.mountpoint, "--all")
    growfs.umount()
    page, left = tmp_path / "page.html", set(growfs.cache.iterdir())
    growfs.run("report", growfs.cache, "-o", page)
    assert set(growfs.cache.iterdir()) == left, "reading creates nothing there"
    assert "not mounted" in page.read_text()
    assert "3 files arrived, and 0 were evicted" in page.read_text()
    growfs.mount(tmp_path / "remote", "--turnover", "35%")
    growfs.kill()
    growfs.run("report", growfs.mountpoint, "-o", page, "--last", "1h")
    assert "not mounted" in page.read_text()
    assert "<dt>--turnover</dt><dd>35%</dd>" in page.read_text()
