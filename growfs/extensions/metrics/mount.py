"""What the metrics add to a mount: a virtual file, and with --metrics-addr a server."""

from __future__ import annotations

from typing import IO

from growfs.daemon.option_parsers import listening
from growfs.daemon.wiring import Feature, Wiring
from growfs.extensions.metrics.options import MetricsOptions
from growfs.rotation.rules import Generation
from growfs.vfs.virtual import VirtualFile


class MetricsFeature(Feature):
    """See Feature. The modules that it imports on demand take 0.1 s."""

    def __init__(self, mount: Wiring) -> None:
        """See Feature."""
        super().__init__(mount)
        mount.virtual_files.append(VirtualFile("metrics", self._write))
        if address := mount.options.of(MetricsOptions).metrics_addr:
            from growfs.extensions.metrics.server import MetricsServer

            server = MetricsServer(listening("--metrics-addr", *address), mount.snapshot)
            mount.services.append(server)
            mount.metrics_url = server.url

    async def _write(self, out: IO[bytes], _: Generation | None) -> None:
        from growfs.extensions.metrics.server import openmetrics

        out.write(openmetrics(await self.mount.snapshot()))
