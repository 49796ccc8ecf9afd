"""The driver, with a folder that stands for /var/lib/kubelet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.support import needs_root
from tests.extensions.csi.kubelet import Kubelet
from tests.harness import Growfs, make_tree
from tests.needs import need

need("grpc")


@pytest.fixture
def kubelet(growfs: Growfs) -> Iterator[Kubelet]:
    """A driver that runs, and a remote beside it: `kubelet.remote`."""
    needs_root()
    made = Kubelet(growfs)
    make_tree(made.remote, directories=2, files=3)
    made.start()
    yield made
    made.close()
