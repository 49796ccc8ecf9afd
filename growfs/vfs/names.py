"""The names of growfs's own files in a mount. Imports little, for programs that only read there."""

from __future__ import annotations

from growfs.remote.names import RESERVED

FOLDER_NAME = RESERVED
NEXT_PART = "next"
"""The file that shows its opener the next part of a pass (--exact)."""
