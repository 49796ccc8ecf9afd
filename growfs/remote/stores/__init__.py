"""The stores: a file or folder for each, the registry of all, and their base classes (base.py and fsspec.py)."""
