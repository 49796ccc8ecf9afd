"""What a person should know about a reader, in a line: most code lists once, and never hears of more."""

from __future__ import annotations

from collections.abc import Sequence

from humanfriendly import format_timespan

from growfs.reader import Reader
from growfs.readers import FOREIGN

FEW = 10
"""Opens that say nothing yet."""
MANY_WAITED = 0.5
MANY_UNREAD = 0.2


def advice(reader: Reader, now: float, share: float, unread: Sequence[str]) -> str:
    """What to tell of a reader; empty where all is well.

    now: seconds, of the reader's clock. share: how much of the data is listed (0 to 1). unread: extensions of which
    hardly a file is ever opened.
    """
    if reader.pid == FOREIGN:
        return (
            "cannot be told apart, so nothing is left out while it reads: run it in the pid namespace of growfs"
            " (docker run --pid=host, hostPID, shareProcessNamespace)"
        )
    if reader.opens >= FEW and reader.waited >= MANY_WAITED * reader.opens:
        return (
            f"{reader.waited / reader.opens:.0%} of its opens waited; it opens by name: list, or read .growfs/index.csv"
        )
    if reader.listed_at is None:
        return "opens by name and never listed: it waits for each file that is not local"
    if reader.listed_once and reader.opened_all and share < 1:
        ago = format_timespan(round(now - reader.listed_at), max_units=1)
        times = reader.opens / reader.files_shown
        often = f" {times:.1f} times" if times >= 1.1 else ""
        return (
            f"listed once {ago} ago, has opened its {reader.files_shown:,} files{often}, and will see nothing new until"
            f" it lists again; {share:.0%} of the data"
        )
    if reader.unread >= MANY_UNREAD:
        exclude = f"; --exclude '*.{unread[0]}'?" if unread else ""
        return f"{reader.unread:.0%} of what it was shown it never opened{exclude}"
    return ""
