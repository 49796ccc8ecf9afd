"""Makes torchvision importable without its compiled library, which has no CPU build for every version of torch.

The tests put this on PYTHONPATH, so programs and their spawned workers need no change. Before torchvision is imported,
it declares the two operators whose schemas the import requires; nothing calls them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class BeforeTorchvision(MetaPathFinder):
    """A finder that finds nothing, and runs before all others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare_operators()
        return None


def declare_operators() -> None:
    """Declare the operators, unless the compiled library can be loaded."""
    import torch

    found = importlib.util.find_spec("torchvision")
    folders = found.submodule_search_locations if found else None
    try:
        for library in Path((folders or ["/nowhere"])[0]).glob("_C*.so"):
            torch.ops.load_library(str(library))
            return
    except OSError:
        pass
    torch.library.define("torchvision::nms", NMS)
    torch.library.define("torchvision::qnms", NMS)


sys.meta_path.insert(0, BeforeTorchvision())
