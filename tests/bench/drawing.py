"""pygal, without the hook for plugins that it leaves behind: Python warns of its kind at every later import."""

import sys
from typing import Any

import pygal
from pygal.style import CleanStyle

sys.meta_path[:] = [item for item in sys.meta_path if type(item).__module__ != pygal.__name__]

LOOK: dict[str, Any] = {
    "style": CleanStyle,
    # No script from elsewhere, no animation.
    "js": [],
    "width": 900,
    "height": 420,
    "legend_at_bottom": True,
    "print_values": True,
    "zero": 0,
    "include_x_axis": True,
}

__all__ = ["LOOK", "pygal"]
