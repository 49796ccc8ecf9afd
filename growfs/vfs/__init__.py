"""The view that readers get: names, attributes, directory handles and file handles. Knows no kernel protocol.

Owns the handles. Every answer comes from memory or the local database at once. Only `open` may wait, for a miss, and
the start of a listing, for a new generation.

Invariants: a listed file is whole; an open file never changes.

Public modules: `filesystem`, `attributes`, `virtual`.
"""
