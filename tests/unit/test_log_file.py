"""The log of a daemon: its size, and that nothing is written elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from growfs.daemon.log_file import LOG_BYTES_MAX, OUTPUT_BYTES_PER_S, Allowance, last_lines
from tests.needs import need

PROGRAM = """
import logging, os, sys, time
from pathlib import Path
from growfs.daemon import log_file
path = Path(sys.argv[1])
handler = log_file.LogFile(path)
handler.setFormatter(log_file.OutputFormatter("%(levelname)s %(message)s"))
logging.basicConfig(level=logging.INFO, handlers=[handler])
logging.info("first")
os.write(handler.output, b"printed by a worker\\n")
while b"printed" not in path.read_bytes():
    time.sleep(0.01)
assert path.read_text() == "INFO first\\nprinted by a worker\\n", "copied as it is"
os.write(handler.output, b"x" * 5_000_000 + b"\\n")
for number in range(100):
    logging.info("%s", "y" * 100_000)
os.write(1, b"printed by the daemon\\n")
os.write(2, b"and its last words\\n")
"""


def test_the_log_has_all_that_is_printed_and_stays_small(tmp_path: Path) -> None:
    log, before = tmp_path / "log", tmp_path / "log.1"
    subprocess.run([sys.executable, "-c", PROGRAM, log], timeout=60, check=True)
    assert sorted(tmp_path.iterdir()) == [log, before]
    assert 0 < log.stat().st_size <= LOG_BYTES_MAX + 1000
    assert before.stat().st_size <= LOG_BYTES_MAX + OUTPUT_BYTES_PER_S
    assert log.read_text().endswith("printed by the daemon\nand its last words\n")


def test_the_last_line_says_if_the_disk_fails(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_text("first\n")
    (tmp_path / "log").mkdir()  # stands for a disk that fails
    before, reason = last_lines(tmp_path / "log").decode().splitlines()
    assert before == "first"
    assert "Is a directory" in reason


def test_an_allowance_is_for_each_second() -> None:
    allowance = Allowance(100)
    assert allowance.take(60, 1.0) == (60, 0)
    assert allowance.take(60, 1.5) == (40, 0)
    assert allowance.take(60, 1.9) == (0, 0)
    assert allowance.take(60, 2.0) == (60, 80)
    assert allowance.take(40, 9.0) == (40, 0)


UNMOUNTED = """
import logging
from growfs.fuse.libfuse import LibfuseEngine
engine, log = LibfuseEngine(None), logging.getLogger("pyfuse3")
for engine._mounted in (object(), None):
    log.error("a notification failed, mounted: %s", engine._mounted is not None)
"""


def test_notifications_that_fail_once_it_is_unmounted_are_not_logged() -> None:
    need("pyfuse3")
    done = subprocess.run([sys.executable, "-c", UNMOUNTED], timeout=60, check=True, capture_output=True, text=True)
    assert done.stderr == "a notification failed, mounted: True\n"
