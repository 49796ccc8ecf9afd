"""HTTP for the remotes: connections, downloads in parts, streams, threads, and checksums of the content.

For others: `download`, `stream`, `threads`, `connection`, `checksum`.
"""
