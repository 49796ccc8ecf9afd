"""--members: the members of archives as files, each a range of bytes of a file of another remote.

Public modules: `options` and `layer`. The others are imported by the workers.
"""
