"""Which files are drawn, admitted and left out as one (--group), asked of the catalog for a single file.

The order of a pass knows that of all files; this is for an open that does not wait for the order.
"""

from __future__ import annotations

from growfs import disk
from growfs.catalog import Catalog, Node
from growfs.remote.names import extension
from growfs.sampling import group_of


class Groups:
    """Finds what belongs together. template: None where each file is alone; its fields are those of `group_of`."""

    def __init__(self, catalog: Catalog, template: str | None) -> None:
        self._catalog = catalog
        self._template = template

    def members(self, node: Node, bytes_max: int) -> list[Node]:
        """The files of the group that a file is in, itself among them; it alone where all have more bytes than that."""
        if self._template is None:
            return [node]
        group = group_of(self._template, self._catalog.path(node))
        bare = node.name.removesuffix(f".{extension(node.name)}")
        within_folder = "{stem}" in self._template or "{parent}" in self._template
        by_name = "{stem}" in self._template or "{name}" in self._template
        found = self._catalog.beginning_with(bare if by_name else "", node.parent if within_folder else None)
        group_members = [other for other in found if group_of(self._template, self._catalog.path(other)) == group]
        fits = sum(disk.allocation(member.size or 0) for member in group_members) <= bytes_max
        return group_members if fits else [node]
