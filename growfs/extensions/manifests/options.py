"""The option --manifest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from growfs.daemon.option_parsers import absolute
from growfs.daemon.options import FeatureOptions, Options, option
from growfs.remote.interface import RemoteSpec


@dataclass(frozen=True, kw_only=True)
class ManifestsOptions(FeatureOptions):
    """See FeatureOptions."""

    manifest: str | None = option(
        None,
        absolute,
        "FILE",
        "Read the list of files from a text, CSV or Parquet file or an S3 Inventory, instead of listing the remote.",
        group="Store",
        affects_node=True,
    )

    def remote(self, spec: RemoteSpec, options: Options, folder: Path) -> RemoteSpec:
        """See FeatureOptions. The URL of a table is that of its folder, with the table as the manifest."""
        from growfs.extensions.manifests.layer import ManifestLayer, is_web_table

        table = self.manifest or (spec.url if is_web_table(spec.url) else None)
        if table is None:
            return spec
        return replace(spec, layers=(ManifestLayer(table),), identity=(options.endpoint_url, self.manifest))
