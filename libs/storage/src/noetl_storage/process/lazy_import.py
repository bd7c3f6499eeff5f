"""Modules that are loaded when they are first used.

Arrow takes 12 MiB of each process. A projector that never reads the archive needs none of it, and
neither does a reaper that has nothing to retire. Who checks types imports such a module as always,
under `TYPE_CHECKING`.
"""

import importlib
from typing import Any


class LazyModule:
    """Stands for a module, by its name, until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
