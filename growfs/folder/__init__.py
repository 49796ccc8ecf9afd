"""The front end without a kernel: a plain folder of generations, for machines where nothing can be mounted.

Owns what is below the folder of `growfs fill`. A generation is a tree of hard links to cached files, so readers read
native files. What a tree holds is never evicted by a draw; what is evicted all the same is unlinked in every tree, so
that the quota counts whatever the trees keep.

Public modules: `engine` (keeps the folder filled), `layout` (names below the folder), `trees` (generations on the
disk), `opens` (counts opens).
"""
