"""Which files form a group with a given one: they are drawn, admitted and evicted together."""

from __future__ import annotations

from functools import partial

from growfs import disk
from growfs.cache.catalog import Catalog, Node
from growfs.cache.database import Database
from growfs.cache.schema import Query
from growfs.remote.names import extension
from growfs.rotation.pass_order import group_of


class Groups:
    """Finds the members of a group. template: its fields are those of `group_of`; None: every file is alone."""

    def __init__(self, database: Database, template: str | None) -> None:
        self._db = database
        self._template = template

    async def members(self, node: Node, bytes_max: int) -> list[Node]:
        """The files of a file's group, itself included; the file alone where the group needs more than bytes_max.

        A thread looks: they may be in any of a million directories.
        """
        if self._template is None:
            return [node]
        return await self._db.query_in_thread(partial(_members, self._template, node, bytes_max))


def _members(template: str, node: Node, bytes_max: int, ask: Query) -> list[Node]:
    bare = node.name.removesuffix(f".{extension(node.name)}")
    within_folder = "{stem}" in template or "{parent}" in template
    by_name = "{stem}" in template or "{name}" in template
    path_of = Catalog.paths_by(ask)
    group = group_of(template, path_of(node))
    found = Catalog.files_with_prefix(ask, bare if by_name else "", node.parent if within_folder else None)
    members = [other for other in found if group_of(template, path_of(other)) == group]
    fits = sum(disk.allocation(member.size or 0) for member in members) <= bytes_max
    return members if fits else [node]
