"""The documentation builds as a site, strictly, and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser import needs_browser, opened_in_browser
from tests.needs import need

need("material")
ROOT = Path(__file__).parent.parent


class Loads(HTMLParser):
    """What a page loads: scripts, style sheets, images."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = "href" if tag == "link" else "src"
        self.urls += [value for key, value in attrs if key == name and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. A broken link or anchor, and a page that is not in the navigation, are errors of a strict build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


def test_what_a_page_loads_is_in_the_site(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    loaded = {(page, url.partition("?")[0]) for page in pages for url in Loads(page).urls if page.name != "404.html"}
    missing = [(page.name, url) for page, url in loaded if not (page.parent / url.partition("#")[0]).is_file()]
    assert missing == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?https?:[^)]*|@import[^;]*", styles) == []


def test_diagrams_are_drawn_by_a_script_of_the_site(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if '<pre class="mermaid">' in page.read_text()]
    assert pages
    assert all("mermaid.tiny.js" in " ".join(Loads(page).urls) for page in pages)


def test_lists_and_tables_are_what_they_are_on_github(site: Path) -> None:
    """The two read Markdown differently where a list follows a paragraph, and where code in a table has a pipe."""
    for page in site.rglob("*.html"):
        article = re.search("<article.*</article>", page.read_text(), re.DOTALL)
        text = re.sub("<pre.*?</pre>", "", article[0], flags=re.DOTALL) if article else ""
        assert re.findall(r"\n(?:[-*]|\d+\.) [<\w].*|.*\\\|.*|^\|.*\|$", text, re.MULTILINE) == [], page.name


def test_a_recipe_is_shown_as_it_is(site: Path) -> None:
    for recipe in (ROOT / "tools/recipes").glob("*.py"):
        page = re.sub(r"<[^>]+>", "", (site / f"tools/recipes/{recipe.name}.html").read_text())
        lines = [line for line in recipe.read_text().splitlines() if line and not re.search("[&<>\"']", line)]
        assert [line for line in lines if line not in page] == []


@needs_browser
def test_a_page_from_the_disk_searches_and_draws(site: Path, tmp_path: Path) -> None:
    page = site / "ARCHITECTURE.html"
    content = opened_in_browser(f"{page.as_uri()}?q=turnover", tmp_path / "profile")
    assert re.search(r"\d+ matching documents", content)
    assert '<div class="mermaid">' in content  # what is left of the text of a diagram that was drawn
    assert '<pre class="mermaid">' not in content
