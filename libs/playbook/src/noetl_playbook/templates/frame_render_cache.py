"""Renders a template once for all rows that share the names that it reads."""

from typing import Any

from noetl_playbook.templates.closures import Run, Scope
from noetl_playbook.templates.scope import STEADY_NAMES

# What nobody can change in place.
_SHARED = frozenset({str, int, float, bool})


def render_once(run: Run, names: frozenset[str]) -> Run:
    """Let places that share what is steady for them render a template of such names once."""
    if not names or not names <= STEADY_NAMES:
        return run

    def run_or_reuse(scope: Scope) -> Any:
        known = getattr(scope, "steady", None)
        if known is None:
            return run(scope)
        found = known.get(run_or_reuse)
        if found is None:
            found = run(scope)
            if type(found) in _SHARED:
                known[run_or_reuse] = found
        return found

    return run_or_reuse
