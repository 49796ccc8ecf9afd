"""What a reader sees: names, attributes, directory handles and file handles. Knows no kernel protocol.

Owns the handles. Every answer comes from memory or the local database at once. Only `open` may wait, for a miss, and
the begin of a listing, for a new generation.

Always: a listed file is whole; an open file never changes.

For others: `filesystem`, `attributes`, `virtual`.
"""
