"""The version, in a module that imports nothing: every layer may need it."""

__version__ = "0.2.0"
