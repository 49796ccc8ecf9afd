"""The queries that read cached files from the database as the rules need them. Their order is that of the rules."""

from __future__ import annotations

from growfs.rotation.rules import DELISTED_ORDER, LISTED_ORDER, CachedFile

COLUMNS = {
    "id": "r.id",
    "directory": "r.parent",
    "suffix": "r.suffix",
    "bytes": "r.bytes",
    "seq": "r.seq",
    "queue_position": "r.queue_position",
    "delisted": "r.delisted",
    "opened": "r.opened",
}
FIELDS = ", ".join(f"{COLUMNS[field]} AS {field}" for field in CachedFile._fields)
"""What a CachedFile is made of."""


def _query(condition: str, order: str) -> str:
    return (
        f"SELECT {FIELDS} FROM resident r JOIN node n USING (id)"
        f" WHERE r.suffix IS NOT NULL AND n.pinned = 0 AND {condition} ORDER BY {order}"
    )


def _columns(order: tuple[str, ...]) -> str:
    return ", ".join(COLUMNS[field] for field in order)


DELISTED = _query("r.delisted IS NOT NULL", _columns(DELISTED_ORDER))
LISTED = _query("r.delisted IS NULL AND r.seq <= ?", _columns(LISTED_ORDER))
"""Given the last admission that a generation showed."""
UNLISTED = _query("r.delisted IS NULL AND r.seq > ?", "r.seq DESC")
"""Given the last admission that a generation showed."""
