"""HTTP for the remotes: connections, downloads in parts, streams, threads, and checksums of the content.

Public modules: `download`, `stream`, `threads`, `connection`, `checksum`.
"""
