"""The front end without a kernel: a plain folder of generations, for machines that cannot mount.

Owns the contents of the folder of `growfs fill`. A generation is a tree of hard links to cached files, so readers read
native files. A draw never evicts files that a tree holds; a file that is evicted all the same is unlinked in every
tree, so that the limit counts everything that the trees keep.
"""
