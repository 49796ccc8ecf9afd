"""HTTP as the remotes speak it: connections, downloads in parts, streams, checksums of what passes through.

For others: `download`, `stream`, `threads`, `connection`, `checksum`.
"""
