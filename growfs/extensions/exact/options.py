"""The options of --exact."""

from __future__ import annotations

import re
from dataclasses import dataclass

from growfs.daemon.option_parsers import PYTHON_SCHEME, size_or_percentage
from growfs.daemon.options import FeatureOptions, Options, flag, option, refuse
from growfs.errors import UsageError
from growfs.units import CacheSize


def position(text: str) -> tuple[int, int]:
    """(number of a pass, number of its part), both from 1, with 9 digits at most, as in the names of parts."""
    match = re.fullmatch(r"0*([1-9]\d{0,8})/0*([1-9]\d{0,8})", text, re.ASCII)
    if not match:
        raise UsageError(f"{text!r} is not a part; use PASS/PART, such as 3/1 for the first part of pass 3")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, kw_only=True)
class ExactOptions(FeatureOptions):
    """See FeatureOptions."""

    exact: bool = flag(
        "List each file exactly once in each pass over the data. A pass is divided into parts; listing a part waits"
        " until it is cached.",
        group="Whole epochs",
    )
    part_size: CacheSize = option(
        "5%",
        size_or_percentage,
        "SIZE",
        "With --exact: space for two parts, not counting files that stay cached; a size, or a percentage of the cache.",
    )
    start: tuple[int, int] | None = option(
        None,
        position,
        "PASS/PART",
        "With --exact: the part that the root lists first; by default, the one after the last part listed.",
    )

    def check(self, options: Options, url: str) -> None:
        """See FeatureOptions."""
        given = options.changed()
        refuse(
            "; see docs/whole-epochs.md",
            (not self.exact and self.start, "--start needs --exact"),
            (not self.exact and "--part-size" in given, "--part-size needs --exact"),
            (self.exact and "--rotation" in given, "--rotation cannot be used with --exact"),
            (self.exact and "--turnover" in given, "--turnover cannot be used with --exact"),
            (
                self.exact and options.keep_generations,
                "--keep-generations cannot be used with --exact, which keeps one generation besides those being read",
            ),
            (
                self.exact and options.show_files,
                "--show-files cannot be used with --exact, which decides how many files are listed",
            ),
            (
                self.exact and "--producer" in given,
                "--exact cannot be used with --producer: it needs the size of each file",
            ),
            (self.exact and url.startswith(PYTHON_SCHEME), "--exact cannot be used with py:, which has no catalog"),
        )
