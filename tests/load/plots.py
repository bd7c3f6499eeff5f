"""The soak's drawing: memory of each service over the time, on an axis that begins at nothing."""

from typing import Any

from pygal.style import CleanStyle
from tests.bench.drawing import pygal

DRAWING = "load-soak.svg"
_LOOK: dict[str, Any] = {
    "style": CleanStyle,
    # No script from elsewhere, no animation.
    "js": [],
    "width": 900,
    "height": 420,
    "legend_at_bottom": True,
    "dots_size": 1,
    "stroke_style": {"width": 1.5},
    "include_x_axis": True,
}


def draw(found: dict[str, Any]) -> bytes:
    """Draw what the soak's curve holds: a line for each process."""
    curve = found["curve"]
    chart = pygal.XY(
        title="Memory of each process with its children",
        x_title="minutes",
        y_title="MiB",
        **_LOOK,
    )
    for name, figures in curve["family_mib"].items():
        chart.add(name, list(zip(curve["minutes"], figures, strict=True)))
    drawing: bytes = chart.render(is_unicode=False)
    return drawing
