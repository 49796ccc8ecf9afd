"""`ManifestLayer`: what a mount with a manifest sends to its workers. It imports little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from growfs.remote.interface import Layer, Remote, RemoteSpec

SUFFIXES = {".txt": None, ".csv": ",", ".tsv": "\t", ".parquet": None}  # with the column delimiter


@dataclass(frozen=True, slots=True)
class ManifestLayer(Layer):
    """Lists the files of the manifest at a URL."""

    url: str

    def open(self, open_source: Callable[[RemoteSpec], Remote], spec: RemoteSpec) -> Remote:
        """See Layer."""
        from growfs.extensions.manifests.manifest import ManifestRemote

        return ManifestRemote(open_source, spec, self.url)


def suffix_of(url: str) -> str:
    """The suffix of url's path, in lower case and without .gz."""
    return Path(url.split("?")[0].lower().removesuffix(".gz")).suffix


def is_web_table(url: str) -> bool:
    """Whether it is the URL of a table on a web server, so that the remote is its folder."""
    return url.lower().startswith(("http://", "https://")) and suffix_of(url) in SUFFIXES
