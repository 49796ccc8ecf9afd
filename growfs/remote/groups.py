"""Which files belong together: the key of a path (--group), the layouts of public datasets, and how to notice them.

Everything is decided by paths alone, so each process and each node puts the same files together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from string import Formatter
from typing import NamedTuple, Protocol

from growfs.errors import UsageError
from growfs.remote.names import extension, template_fields

FIELDS = ("stem", "name", "parent", "top")
FOLDERS_LOOKED_AT, NAMES_LOOKED_AT = 300, 5000
"""To notice a layout: the first folders, and the first names in the first of these. The others have fewer to show."""
GROUPS_MIN = 10
"""A layout is noticed if as many of its groups are found."""


class Layout(NamedTuple):
    """How a dataset names the files that belong together."""

    name: str
    """What --group calls it: a name, or a template."""
    group: str
    """A value of --group that does not depend on this table."""
    sign: str
    """Searched in paths: in each group, at least one file matches, and in other datasets, none."""


LAYOUTS = (
    Layout(  # leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
        "cityscapes",
        r"(?:^|/)([^/]+_\d{6}_\d{6})_[^/]+$",  # and .../aachen_000000_000019_gtFine_labelIds.png
        r"_gt(?:Fine|Coarse)_labelIds\.png$",
    ),
    Layout(  # train/x.jpg, train_masks/x_mask.gif
        "carvana",
        r"^(?:(.*?)(?:_masks|_hq)?/)?([^/]+?)(?:_mask)?\.[^./]+$",
        r"_mask\.[^./]+$",
    ),
    Layout(  # imagesTr/case_0000.nii.gz, imagesTr/case_0001.nii.gz, labelsTr/case.nii.gz
        "nnunet",
        r"^(.*/)??(?:images(T[rs])/([^/]+)_\d{4}\.[^/]+|labels(T[rs])/([^/]+?)\.(?:nii\.gz|[^./]+))$",
        r"(?:^|/)labelsT[rs]/",
    ),
    Layout(  # cuts.000000.jsonl.gz, recording.000000.tar
        "shar",
        r"^(.*/)?[^./]+\.(\d+)\.[^/]+$",
        r"(?:^|/)cuts\.\d+\.jsonl(?:\.gz)?$",
    ),
    Layout(  # audio_3.tar, sharded_manifests/manifest_3.json
        "nemo",
        r"^(.*?/)??(?:sharded_manifests/)?(?:audio|manifest)_(\d+)\.(?:tar|json)$",
        r"(?:^|/)manifest_\d+\.json$",
    ),
    Layout(  # images/train/x.jpg, labels/train/x.txt
        "yolo",
        r"^(.*/)??(?:images|labels)/(.+)\.[^./]+$",
        r"(?:^|/)labels/.*\.txt$",
    ),
    Layout(  # slide.mrxs, slide/Data0000.dat
        "mirax",
        r"^(.+?)(?:\.mrxs|/(?:Slidedat\.ini|Index\.dat|Data\d+\.dat))$",
        r"\.mrxs$",
    ),
    Layout(  # x.zarr/zarr.json, x.zarr/c/0/0
        "zarr",
        r"^(.*?[^/]\.zarr)/",
        r"\.zarr/.*(?:zarr\.json|\.zgroup|\.zarray)$",
    ),
    Layout("{top}", "{top}", r"^[^/]+/(?:zarr\.json|\.zgroup|\.zarray)$"),
    Layout("{parent}", "{parent}", r"/[^/]+\.dcm$"),  # the slices of a DICOM series
    Layout("{stem}", "{stem}", r"\.(?:json|txt|xml)$"),
)
"""The first one that fits is suggested."""
_GROUPS = {layout.name: layout.group for layout in LAYOUTS}
PRESETS = [layout.name for layout in LAYOUTS if layout.name != layout.group]
_REPEATED_PARENTHESES = re.compile(r"(?<!\\)(?:\\\\)*\)[*+{]")
"""Nothing ends a match in time, and meanwhile no other thread runs. Without these, its time is polynomial."""


def group_of(group: str | None, path: str) -> str:
    """The key of a path: the text that decides its place, the same for all files of its group. Without groups, its
    path.
    """
    return path if group is None else grouping(group).key(path)


class Surroundings(NamedTuple):
    """What all files of a group have in common, so that no others need be looked at."""

    folder: str | None
    """The one that contains them; None if they may be in any."""
    prefix: str
    """The first characters of their names."""
    substring: str
    """Characters of their names, or of the path of their folder."""


class Grouping(Protocol):
    """What a value of --group means."""

    def key(self, path: str) -> str:
        """See `group_of`."""

    def surroundings(self, path: str) -> Surroundings:
        """Those of a path's group."""


@lru_cache(16)
def grouping(text: str) -> Grouping:
    """The meaning of a value of --group: a layout's name, a regular expression or a template. Raises UsageError."""
    text = _GROUPS.get(text, text)
    return _Expression(text) if "(" in text else _Template(text)


class _Expression:
    """A regular expression, searched in the path: its captures are the key. A path without any is alone."""

    def __init__(self, text: str) -> None:
        try:
            self._expression = re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{text!r} is not a regular expression: {error}; parentheses in names are \\( and \\)"
            ) from None
        if not self._expression.groups:
            raise UsageError(f"{text!r} captures nothing; put what the files of a group share in parentheses")
        if _REPEATED_PARENTHESES.search(text):
            raise UsageError(
                f"{text!r} repeats parentheses, which can take hours for a name; repeat single characters, as in [^/]*"
            )

    def key(self, path: str) -> str:
        captures = self._captures(path)
        return "\0".join(("", *captures)) if captures else path  # no path contains \0

    def surroundings(self, path: str) -> Surroundings:
        names = (text.rpartition("/")[2] for text in self._captures(path) or [path])
        return Surroundings(None, "", max(names, key=len))

    def _captures(self, path: str) -> list[str]:
        match = self._expression.search(path)
        return [text for text in match.groups() if text is not None] if match else []


class _Template:
    """A text with fields: {stem}, the path without its extension; {name}, the same without its folder; {parent}, its
    folder; {top}, its first folder; {dir:N}, its first N folders. A path with fewer folders than that is alone.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            fields = [(name, spec or "", how) for _, name, spec, how in Formatter().parse(text) if name is not None]
        except ValueError:
            fields = []
        if not fields or not all(_is_field(*field) for field in fields):
            known = ", ".join(f"{{{name}}}" for name in (*FIELDS, "dir:N"))
            raise UsageError(
                f"{text!r} is not a group; use {known}, such as '{{stem}}' for x.jpg and x.json; a layout"
                f" ({', '.join(PRESETS)}); or a regular expression with parentheses"
            )
        names = {name for name, *_ in fields}
        self._in_one_folder = bool(names & {"stem", "parent"})
        self._by_name = bool(names & {"stem", "name"})
        self._folders = max([*(int(spec) for name, spec, _ in fields if name == "dir"), int("top" in names)])

    def key(self, path: str) -> str:
        return self._text.format(**template_fields(path), top=path.partition("/")[0], dir=_Folders(path))

    def surroundings(self, path: str) -> Surroundings:
        parent, _, name = path.rpartition("/")
        prefix = name.removesuffix(f".{extension(name)}") if self._by_name else ""
        if self._in_one_folder:
            return Surroundings(parent, prefix, "")
        return Surroundings(None, prefix, "".join(parent.split("/")[: self._folders][-1:]))


def _is_field(name: str, spec: str, conversion: str | None) -> bool:
    is_number = re.fullmatch("[1-9][0-9]{0,2}", spec) is not None
    return conversion is None and (is_number if name == "dir" else name in FIELDS and not spec)


class _Folders(str):
    """A path whose format N is its first N folders, or all of it."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "/".join(self.split("/")[: int(spec)])


class FirstNames:
    """Paths of a listing that show its layout: folders with similar names show both files of a pair."""

    def __init__(self) -> None:
        self._of_folders: dict[str, list[str]] = {}

    def add(self, path: str) -> None:
        """Note a path, unless there are enough of its folder."""
        folder = path.rpartition("/")[0]
        if folder in self._of_folders or len(self._of_folders) < FOLDERS_LOOKED_AT:
            paths = self._of_folders.setdefault(folder, [])
            if len(paths) < names_looked_at(len(self._of_folders)):
                paths.append(path)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._of_folders.values())


def names_looked_at(folder: int) -> int:
    """How many names of a folder are looked at to notice a layout, its first ones. folder: its number, from 1."""
    return NAMES_LOOKED_AT // folder


class Suggestion(NamedTuple):
    """A hint at a missing --group."""

    found: str
    remedy: str


def suggestion(paths: Iterable[str]) -> Suggestion | None:
    """What these paths of a listing suggest; None if they are of no known layout."""
    paths = list(paths)
    for layout in LAYOUTS:
        signed = set(filter(re.compile(layout.sign).search, paths))
        groups = defaultdict[str, list[str]](list)
        for path in paths if signed else ():
            groups[group_of(layout.group, path)].append(path)
        found = [group for group in groups.values() if len(group) > 1 and not signed.isdisjoint(group)]
        if len(found) >= GROUPS_MIN:
            (one, other, *_), option = found[0], layout.name if layout.name in PRESETS else f"'{layout.name}'"
            return Suggestion(
                f"{one} and {other} seem to belong together", f"--group {option} lists and evicts them together"
            )
    return None
