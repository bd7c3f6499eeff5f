"""Answers that the planner folds in slices: asked for again and again until they are there."""

from collections.abc import Callable
from typing import Any

from noetl_cli.planner.client import PlannerClient

ShowProgress = Callable[[int, int], None]


def fetch_folded(
    planner: PlannerClient, path: str, /, *, show_progress: ShowProgress, **params: Any
) -> Any:
    """Ask until a history is folded far enough: the planner goes on from the answer before.

    `show_progress` is given how many events are folded, and of how many.
    """
    while True:
        answer = planner.get(path, **params)
        if "folded" not in answer:
            return answer
        show_progress(answer["folded"], answer["wanted"])


def ignore_progress(_folded: int, _wanted: int) -> None:
    """Show nothing."""
