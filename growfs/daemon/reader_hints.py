"""Advice on a reader that sees no new files, waits for downloads, or leaves files unread: one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from humanfriendly import format_timespan

from growfs.rotation.holds import Reader
from growfs.rotation.readers import FOREIGN

OPENS_MIN = 10
"""With fewer opens than this, the share that waited says nothing yet."""
WAITED_SHARE = 0.5
UNREAD_SHARE = 0.2


def hint(reader: Reader, now: float, listed_share: float, unread: Sequence[str]) -> str:
    """Advice for the person who runs the reader; empty if all is well.

    now: seconds, on the clock of the reader's times. listed_share: the fraction (0 to 1) of the data that is listed.
    unread: file extensions that are hardly ever opened.
    """
    if reader.pid == FOREIGN:
        return (
            "is in another pid namespace, so nothing is delisted while it reads: run it in the pid namespace of growfs"
            " (docker run --pid=host, hostPID, shareProcessNamespace)"
        )
    if reader.opens >= OPENS_MIN and reader.waited >= WAITED_SHARE * reader.opens:
        waited = f"{reader.waited / reader.opens:.0%} of its opens"
        return f"{waited} waited for a download: take file names from a listing or .growfs/index.csv"
    if reader.listed_at is None:
        return "opens by name and never listed: it waits for each file that is not cached"
    if reader.listed_once and reader.opened_all and listed_share < 1:
        ago = format_timespan(round(now - reader.listed_at), max_units=1)
        times = reader.opens / reader.files_shown
        often = f" {times:.1f} times" if times >= 1.1 else ""
        return (
            f"listed once {ago} ago, has opened its {reader.files_shown:,} files{often}, and will see nothing new until"
            f" it lists again; it sees {listed_share:.0%} of the data"
        )
    if reader.unread >= UNREAD_SHARE:
        exclude = f"; consider --exclude '*.{unread[0]}'" if unread else ""
        return f"never opened {reader.unread:.0%} of the files that it listed{exclude}"
    return ""
