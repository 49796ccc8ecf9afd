"""What a reader sees: names, attributes, directory handles and file handles. Knows no kernel protocol.

Owns the handles. Every answer comes from memory or the local database at once; only `open` may wait, for a miss.

Always: a listed file is whole; an open file never changes.

For others: `filesystem.Vfs`, `filesystem.VirtualFile`, `attributes`.
"""
