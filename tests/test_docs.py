"""The documents agree with the program on options, commands, virtual files, status and messages."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from growfs import __version__, errors
from growfs.cli import SECTIONS
from growfs.daemon.log_file import LAST_LINES
from growfs.daemon.options import GROUPS, all_rows, flag_name
from growfs.daemon.virtual_files import LEDGER, virtual_files
from growfs.fuse.engine_choice import PACKAGES
from growfs.status_and_metrics import METRICS as OTHERS
from growfs.status_and_metrics import MountState, MountStatus, status_fields
from tools import man, messages

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
OPTIONS = (DOCS / "options.md").read_text()
STATUS = (DOCS / "status-and-metrics.md").read_text()
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name in ("docs", "tools", "docker") for page in (ROOT / name).rglob("*.md"))]
)
CODE_PAGES = [ROOT / "ARCHITECTURE.md", DOCS / "roadmap.md", *sorted((DOCS / "decisions").glob("*.md"))]
LINES_MAX = {"README.md": 180, "ARCHITECTURE.md": 200}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def option_rows() -> Iterator[str]:
    """The headings and rows of the options tables, as the code defines them."""
    shown = ""
    for name, row in all_rows().items():
        meta = row.metadata
        if meta["group"] not in (None, shown):
            shown = meta["group"]
            yield f"### {shown}"
        value = f" {meta['metavar']}" if "metavar" in meta else ""
        default = f"`{meta['default']}`" if meta.get("default") else ""
        cells = (f"`{flag_name(name)}{value}`", default, meta["help"])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def test_every_option_is_documented_as_in_its_help() -> None:
    headings = {f"### {group}" for group in GROUPS}
    table = [line for line in OPTIONS.splitlines() if line.startswith("| `--") or line in headings]
    assert table == list(option_rows())
    (can_be_set,) = (line for line in OPTIONS.splitlines() if "`growfs set MOUNTPOINT" in line)
    assert all(flag_name(name)[2:] in can_be_set for name, row in all_rows().items() if row.metadata["live"])


def test_every_command_is_documented() -> None:
    documented = set(re.findall(r"`([a-z]+)(?: \[?MOUNTPOINT[^`]*)?`", OPTIONS)) | set(
        re.findall(r"`growfs ([a-z]+)", OPTIONS)
    )
    assert {command for commands in SECTIONS.values() for command in commands} <= documented


def test_the_man_page_is_the_help_of_the_commands() -> None:
    assert man.PAGE.read_text() == man.page(), "update it: python -m tools.man"


def test_every_field_of_the_status_and_every_other_metric_is_documented() -> None:
    rows = [
        f"| `{field.path}` | {(meaning := field.meaning).text} | {meaning.unit} |"
        f" {f'`{field.metric}`, {meaning.kind}' if field.metric else ''} |"
        for field in status_fields()
    ]
    assert table_below("| field |") == rows
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |"
        for metric in OTHERS
    ]
    assert table_below("| metric |") == rows


def table_below(head: str) -> list[str]:
    """The rows of the table of the page on the status whose head begins so."""
    below = STATUS.split(f"\n{head}")[1].splitlines()[2:]
    return list(itertools.takewhile(lambda line: line.startswith("|"), below))


def test_every_virtual_file_is_documented() -> None:
    async def taken() -> MountStatus:
        raise NotImplementedError

    rows = virtual_files(Path(), Path(), taken)
    names = {row.name for row in rows} | {"metrics"}  # that of an extension
    assert names == set(re.findall(r"\| `\.growfs/([\w.]+)`", STATUS))
    assert f"the last {LAST_LINES:,} lines" in STATUS
    assert all(f"`{column}`" in STATUS for column in LEDGER)


def test_every_state_is_documented() -> None:
    rows = [row.split("`")[1] for row in table_below("| state |")]
    assert rows == [state.value for state in MountState]


def test_every_errno_of_a_miss_is_documented() -> None:
    for page in (ROOT / "SEMANTICS.md", DOCS / "troubleshooting.md"):
        text = page.read_text()
        assert all(f"| {name} |" in text for name in ("EIO", "ETIMEDOUT", "EFBIG", "ENOSPC", "ENFILE", "ENOENT"))


def test_the_page_of_messages_has_those_of_the_code() -> None:
    page = messages.PAGE.read_text()
    assert len(messages.quoted(page)) > 300
    assert page == messages.rewritten(page), "update it: python -m tools.messages"


def test_the_page_quotes_whole_messages_unless_several_have_a_part() -> None:
    first, second = "…: no such bucket; check the name", "…: no such folder"
    assert messages.whole("such bucket", {first, second}) == first
    assert messages.whole("…: there is no such bucket; check its name", {first, second}) == first
    assert messages.whole("no such", {first, second}) == "no such"
    with pytest.raises(LookupError):
        messages.whole("out of memory", {first, second})


def test_every_message_that_a_person_can_meet_is_on_its_page() -> None:
    known = messages.quoted(messages.PAGE.read_text())
    raised = [message for path in (ROOT / "growfs").rglob("*.py") for message in raised_messages(path)]
    assert len(raised) > 100
    assert [message for message in raised if not any(part in message for part in known)] == []


def raised_messages(path: Path) -> Iterator[str]:
    """The messages of the errors of growfs that a module creates, if they have any text but values."""
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes and node.args:
            message = next(messages.texts(node.args[0]), "")  # the first is the whole
            if message.strip(f"{messages.VALUE}:;() "):
                yield message


@pytest.mark.parametrize("name", LINES_MAX)
def test_a_page_is_short_enough(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= LINES_MAX[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_has_a_target(page: Path) -> None:
    """Relative links lead to a file that exists and, after a #, to a heading in it."""
    for link in LINK.findall(page.read_text()):
        if not re.match(r"[a-z]+:", link):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them in links."""
    return {as_anchor(heading) for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)}


def as_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_page_is_in_the_index() -> None:
    """The index is the navigation of the site (tools/docs.py)."""
    index = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    pages = {page for page in PAGES if page.parent != DOCS / "decisions"} | {DOCS / "decisions/README.md"}
    assert pages - {DOCS / "README.md"} <= index


def test_the_changelog_begins_with_this_version() -> None:
    (latest, *_) = re.findall(r"^## ([\d.]+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest == __version__


def test_the_decisions_are_numbered_without_gaps_and_in_their_index() -> None:
    pages = sorted(page.name for page in (DOCS / "decisions").glob("0*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    assert [name for name in LINK.findall((DOCS / "decisions/README.md").read_text()) if "/" not in name] == pages


@pytest.mark.parametrize("page", CODE_PAGES, ids=lambda page: page.name)
def test_the_files_and_classes_that_a_page_names_exist(page: Path) -> None:
    """Files may be named by the end of their path; classes and methods are checked in brackets after their file."""
    text = page.read_text()
    files = [
        f"/{path.relative_to(ROOT)}" for top in ("growfs", "tests", "tools") for path in (ROOT / top).rglob("*.py")
    ]
    missing = [name for name in re.findall(r"[\w/]+\.py", text) if not any(path.endswith(f"/{name}") for path in files)]
    missing += [name for name in re.findall(r"`((?:growfs|tests|tools)[\w/]*)`", text) if not (ROOT / name).exists()]
    for file, names in re.findall(r"`(growfs/[\w/]+\.py)`\s\((`[^)]+)\)", text):
        source = (ROOT / file).read_text()
        for name, method in re.findall(r"`(\w+)(?:\.(\w+))?`", names):
            if f"class {name}" not in source or (method and f"def {method}(" not in source):
                missing.append(f"{file}: {name}")
    for diagram in re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL):
        called = re.findall(r"(\w+/\w+\.py) (\w+)", diagram) + [
            ("", name) for name in re.findall(r"\b(\w+)\(", diagram)
        ]
        for file, name in called:
            sources = [path for path in (ROOT / "growfs").rglob("*.py") if str(path).endswith(file)]
            if not any(f"def {name}(" in path.read_text() for path in sources):
                missing.append(f"{file}: {name}")
    assert missing == []


def test_each_figure_of_the_readme_is_in_the_page_on_performance() -> None:
    """README writes ratios as percentages. Its table of other tools is generated, as their page is."""
    known = rows_of((DOCS / "performance.md").read_text())
    figures_of_readme = (ROOT / "README.md").read_text().partition("## What to expect")[2]
    before, _, after = figures_of_readme.partition("<!-- tools/bench peers -->")
    readme = before + after.partition("\n\n")[2]
    readme = re.sub(r"\b\d+%|\b\d+(?= to \d+%)", lambda found: f"{int(found[0].strip('%')) / 100:.2f}", readme)
    for name, figures in rows_of(readme.replace("1.00", "1.0")):
        found = [theirs for label, theirs in known if label.startswith(name)]
        assert any(figures <= theirs for theirs in found), f"README says {figures} of {name!r}, the page {found}"


def test_each_figure_of_the_page_on_performance_was_measured() -> None:
    """The figures of a section are in the sections of other pages that it links to."""
    checked = 0
    for section in (DOCS / "performance.md").read_text().split("\n## ")[1:]:
        links = [link.split("#") for link in LINK.findall(section) if re.match(r"[\w-]+\.md#", link)]
        measured = figures_of("".join(below_heading(DOCS / name, anchor) for name, anchor in links))
        if links:
            assert figures_of(LINK.sub("", section)) <= measured, section.splitlines()[0]
            checked += 1
    assert checked > 6


def below_heading(page: Path, anchor: str) -> str:
    """A section of a page: its heading, and the text up to the next one that is no smaller."""
    found = re.split(r"^(#+) (.+)$", page.read_text(), flags=re.MULTILINE)
    sections = list(zip(found[1::3], found[2::3], found[3::3], strict=True))
    first = next(at for at, (_, title, _) in enumerate(sections) if as_anchor(title) == anchor)
    size = len(sections[first][0])
    smaller = itertools.takewhile(lambda section: len(section[0]) > size, sections[first + 1 :])
    return "\n".join(title + text for _, title, text in (sections[first], *smaller))


def figures_of(text: str) -> set[str]:
    return set(re.findall(r"[\d,.]*\d", text))


def rows_of(text: str) -> list[tuple[str, set[str]]]:
    """The rows of the tables that have figures: the first cell, and the figures of the others."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [(row[0].strip(), figures) for row in cells if len(row) > 1 and (figures := figures_of(" | ".join(row[1:])))]


def test_the_packages_of_libfuse_are_those_that_its_error_names() -> None:
    assert PACKAGES in (DOCS / "getting-started.md").read_text()
