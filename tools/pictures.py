"""Makes the pictures of the README and the documentation from real runs: python -m tools.pictures [NAME...].

demo: the output of tools/demo. top: `growfs top` while a program reads a mount, and `growfs report` on the same mount
as shown by headless Chromium. tools/setup test installs the requirements.
"""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from growfs.extensions.top.view import Shown, TopPage, frame
from growfs.extensions.top.watch import Watch, find_new
from tests.browser import BROWSER, FLAGS
from tools.benchmarks.child import ReaderProcess
from tools.benchmarks.measure import run, temporary_folder, write_file
from tools.benchmarks.mounts import GROWFS, mounted
from tools.benchmarks.servers import rclone_server

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS, ROWS = 100, 32
FOLDERS = ("bird", "boat", "car", "cat", "dog", "horse")
FILES = 60
"""In each folder."""
CACHE_SIZE, BANDWIDTH = "80MB", "3MB/s"
EPOCHS, COMPUTE_S = 1_000_000, 0.01
"""Of the program that reads: it computes after each file, until it is ended."""
PAGE = "1200,1250"
"""The visible part of the report, in pixels."""
LINE_UP, ERASE_LINE = "\x1b[1A", "\x1b[2K"
CURSOR = re.compile(r"\x1b\[\?25[lh]|\r")
TEMPORARY = re.compile(r"/tmp/growfs-[\w-]+/")
"""The folder of a run, which no reader needs to see."""
FONT_FACES = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def save_svg(text: str, name: str) -> None:
    """Write one of rich's SVGs, without the fonts that it would load from the network."""
    (DOCS / name).write_text(FONT_FACES.sub("", text))


def demo() -> None:
    command = [sys.executable, "-m", "tools.demo"]
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    shown: list[str] = []
    for line in printed.stdout.decode().split("\n"):
        if LINE_UP in line:
            shown.pop()  # a progress bar that has ended
        shown.append(TEMPORARY.sub("", CURSOR.sub("", line.rpartition(ERASE_LINE)[2])))
    console = Console(record=True, width=COLUMNS + 20, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("\n".join(shown).strip()))
    save_svg(console.export_svg(title="tools/demo"), "demo.svg")


def picture(watches: Sequence[Watch], width: int, height: int) -> str:
    console = Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(frame(list(watches), Shown(TopPage.OVERVIEW)), height=height)
    return console.export_svg(title="growfs top")


def top_and_report() -> None:
    """Write docs/top.svg and docs/report.png."""
    with temporary_folder() as folder, read_mount(folder) as mountpoint:
        watches: list[Watch] = []
        find_new(mountpoint, watches)
        time.sleep(75)
        watches[0].mountpoint = Path("/mnt/train")
        save_svg(picture(watches, COLUMNS, ROWS), "top.svg")
        page = folder / "report.html"
        run([*GROWFS, "report", mountpoint, "-o", page])
        page.write_text(TEMPORARY.sub("/", page.read_text()))
        screenshot(page, DOCS / "report.png")


@contextmanager
def read_mount(folder: Path) -> Iterator[Path]:
    """Mount a bucket of folders with a cache that is too small for it, and let a process read the listed files."""
    chance = random.Random(1)
    for number in range(FILES * len(FOLDERS)):
        path = folder / "remote" / "bucket" / "train" / FOLDERS[number % len(FOLDERS)] / f"{number:04}.jpg"
        write_file(path, chance.randbytes(chance.randint(400_000, 900_000)))
    with rclone_server(folder / "remote") as server:
        flags = ["--endpoint-url", server.endpoint, "--cache-size", CACHE_SIZE, "--bandwidth", BANDWIDTH]
        with mounted("s3://bucket/train", folder, *flags) as mount, ReaderProcess() as reader:
            reader.start("train", mount.mountpoint, EPOCHS, COMPUTE_S)
            yield mount.mountpoint


def screenshot(page: Path, to: Path) -> None:
    if BROWSER is None:
        sys.exit("pictures: no browser; install chromium")
    options = [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={PAGE}", "--hide-scrollbars"]
    run([BROWSER, *FLAGS, *options, f"--screenshot={to}", page.as_uri()])


PICTURES: dict[str, Callable[[], None]] = {"demo": demo, "top": top_and_report}


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
