"""pygal, without the hook for plugins that it leaves behind: Python warns of its kind at every later import."""

import sys

import pygal

sys.meta_path[:] = [item for item in sys.meta_path if type(item).__module__ != pygal.__name__]

__all__ = ["pygal"]
