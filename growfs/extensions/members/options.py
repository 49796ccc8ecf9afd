"""The option --members."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from growfs.daemon.option_parsers import function
from growfs.daemon.options import FeatureOptions, Options, option
from growfs.remote.interface import RemoteSpec
from growfs.remote.user_functions import Function


@dataclass(frozen=True, kw_only=True)
class MembersOptions(FeatureOptions):
    """See FeatureOptions."""

    members: Function | None = option(
        None,
        function,
        "FUNCTION",
        "Mount the members of archives as files: tar, webdataset, zip_stored, or module:function.",
        group="Producers and archives",
        affects_node=True,
    )

    def remote(self, spec: RemoteSpec, options: Options, folder: Path) -> RemoteSpec:
        """See FeatureOptions."""
        if not self.members:
            return spec
        from growfs.extensions.members.layer import MembersLayer

        layers = (*spec.layers, MembersLayer(self.members))
        return replace(spec, layers=layers, identity=(*spec.identity, str(self.members)))
