"""Which files form a group with a given one: they are drawn, admitted and evicted together."""

from __future__ import annotations

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.remote.names import extension
from growfs.rotation.draw_order import group_of


class Groups:
    """Finds the members of a group. template: its fields are those of `group_of`; None: every file is alone."""

    def __init__(self, catalog: Catalog, template: str | None) -> None:
        self._catalog = catalog
        self._template = template

    def members(self, node: Node, bytes_max: int) -> list[Node]:
        """The files of a file's group, itself included; the file alone where the group needs more than bytes_max."""
        if self._template is None:
            return [node]
        group = group_of(self._template, self._catalog.path(node))
        bare = node.name.removesuffix(f".{extension(node.name)}")
        within_folder = "{stem}" in self._template or "{parent}" in self._template
        by_name = "{stem}" in self._template or "{name}" in self._template
        found = self._catalog.files_with_prefix(bare if by_name else "", node.parent if within_folder else None)
        members = [other for other in found if group_of(self._template, self._catalog.path(other)) == group]
        fits = sum(disk.allocation(member.size or 0) for member in members) <= bytes_max
        return members if fits else [node]
