"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc

OBJECTS = 50_000
"""New ones, until it looks: by its own default of 700, it took a worker and the daemon a twentieth of their CPU."""


def look_rarely() -> None:
    """Of what is there now, mostly modules, nothing is looked through again, nor copied after a fork."""
    gc.freeze()
    gc.set_threshold(OBJECTS)
