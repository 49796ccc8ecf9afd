"""MkDocs hook: the Markdown files of this checkout as a site. `tools/docs` builds it.

The site mirrors the checkout, so a relative link leads to the same page as on GitHub:

- The Markdown files of the top level, docs/, tools/ and docker/ are pages, under their own paths.
- A source file that a page links to (a recipe, a producer) becomes a page that shows it.
- docs/README.md is the navigation: each heading is a section, each item of a list a page. A folder's README.md
  is followed by the files of that folder that it links to.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pygments.lexers import find_lexer_class_for_filename

ROOT = Path(__file__).parent.parent
INDEX = "docs/README.md"
FOLDERS = ("docs", "tools", "docker")
ASSETS = {".css", ".gif", ".html", ".js", ".png", ".svg", ".txt"}
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)")
CODE_IN_TABLE = re.compile(r"(?<= )`[^`\n]*\\\|[^`\n]*`(?= )")
MERMAID = "docs/assets/mermaid.tiny.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files that MkDocs found in docs/ by those of the site, under their paths in the checkout."""
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*.md"))
    paths = sorted(path.relative_to(ROOT).as_posix() for path in found if path.suffix in {".md", *ASSETS})
    pages = [path for path in paths if path.endswith(".md")]
    sources = {target for path in pages for _, target in links(path) if is_source(target)}
    config.nav = navigation()
    own = [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in paths]
    own += [File.generated(config, f"{path}.md", content=source_page(path)) for path in sorted(sources)]
    for file in own:
        if file.src_uri == INDEX or file.generated_by:  # need not be in the navigation
            file.inclusion = InclusionLevel.NOT_IN_NAV
    return Files(of_theme + own)


def links(path: str) -> Iterator[tuple[str, str]]:
    """Text and target (relative to the checkout) of the links from a page to files of this checkout."""
    for link in LINK.finditer((ROOT / path).read_text()):
        target = resolved(link["target"], path)
        if (ROOT / target).is_file():
            yield link["text"], target


def resolved(target: str, page: str) -> str:
    """The target of a link in a page, relative to the checkout."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def is_source(path: str) -> bool:
    """Whether a file that a page links to becomes a page that shows it."""
    return posixpath.splitext(path)[1] not in {".md", *ASSETS}


def source_page(path: str) -> str:
    name = posixpath.basename(path)
    lexer = find_lexer_class_for_filename(name)
    language = lexer.aliases[0] if lexer else "text"
    text = (ROOT / path).read_text().rstrip()
    return f'---\nhide: [toc]\n---\n\n# {name}\n\n~~~~{language} title="{path}"\n{text}\n~~~~\n'


def navigation() -> list[Any]:
    """MkDocs's `nav`, from the headings and lists of docs/README.md."""
    nav: list[Any] = []
    for section in re.split("^## ", (ROOT / INDEX).read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        found = [LINK.search(line) for line in text.splitlines() if line.startswith("- ")]
        pages: list[Any] = [{link["text"]: entry(resolved(link["target"], INDEX))} for link in found if link]
        if len(pages) == 1:  # a folder is a section, not a section in a section
            (pages,) = pages[0].values()
        nav.append({title: pages})
    return nav


def entry(path: str) -> str | list[Any]:
    """A page. If it is the README.md of a folder, includes the files of that folder which it links to."""
    folder, name = posixpath.split(path)
    if not folder or name != "README.md":
        return path
    below = {target: text for text, target in links(path) if posixpath.dirname(target) == folder}
    return [path, *({text: f"{target}.md" if is_source(target) else target} for target, text in below.items())]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to source files at the pages that show them, and links to folders at their README.md.

    GitHub needs a backslash before a pipe in code in a table; it would be visible here.
    """

    def shown(link: re.Match[str]) -> str:
        target = resolved(link["target"], page.file.src_uri)
        if (ROOT / target / "README.md").is_file():
            return f"{link[0].removesuffix('/')}/README.md"
        return f"{link[0]}.md" if files.get_file_from_path(f"{target}.md") else link[0]

    return CODE_IN_TABLE.sub(lambda code: code[0].replace(r"\|", "|"), LINK.sub(shown, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the script that draws diagrams (2.5 MB) on pages that have one. The theme would load it from the network."""
    if '<pre class="mermaid">' not in output:
        return output
    script = posixpath.relpath(MERMAID, posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)
