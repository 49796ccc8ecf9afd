"""HTTP for the remotes: connections, downloads in segments, streams, threads, and checksums of the content.

Public modules: `download`, `stream`, `threads`, `connection`, `checksum`.
"""
