"""Renders a template once for all rows that share the names that it reads."""

from typing import Any

from noetl_playbook.templates.closures import Run, Scope
from noetl_playbook.templates.scope import STEADY_NAMES

# What nobody can change in place.
_SHARED = frozenset({str, int, float, bool})


def render_once(run: Run, names: frozenset[str]) -> Run:
    """Return a template that renders once for all rows of a frame, if the frame fixes its names.

    Compiled templates go through it; those of other names are returned as they are.
    """
    if not names or not names <= STEADY_NAMES:
        return run

    def run_or_reuse(scope: Scope) -> Any:
        renders = getattr(scope, "steady", None)
        if renders is None:
            return run(scope)
        rendered = renders.get(run_or_reuse)
        if rendered is None:
            rendered = run(scope)
            if type(rendered) in _SHARED:
                renders[run_or_reuse] = rendered
        return rendered

    return run_or_reuse
