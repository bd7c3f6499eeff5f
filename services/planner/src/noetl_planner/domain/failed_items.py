"""Which loop a rerun of failed items begins with, and why there may be none."""

from collections.abc import Sequence

from msgspec import Struct

from noetl_playbook.model import Step
from noetl_playbook.plan import Graph


class LoopOutcome(Struct, frozen=True, kw_only=True):
    """What became of the latest epoch of a step's loop; `began_at` is a position of the history."""

    step: str
    began_at: int
    total: int
    completed: int
    failed: int
    mode: str
    is_framed: bool = False
    has_cursor: bool = False
    is_cut_inside: bool = False

    @property
    def unfinished(self) -> int:
        """Count units that did not complete: a cursor has none but those that failed."""
        return self.failed if self.has_cursor else self.total - self.completed


class NoChoice(Exception):  # noqa: N818 - it says what was found
    """There is no loop to begin with, or several, or one whose items cannot run alone."""

    def __init__(self, code: str, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint


def choose_loop(
    loops: Sequence[LoopOutcome], graph: Graph, *, wanted: str | None = None
) -> LoopOutcome:
    """Choose the loop to begin with: the one named, else the first that has items to run.

    Raises `NoChoice`.
    """
    open_loops = sorted(
        (loop for loop in loops if loop.unfinished > 0), key=lambda loop: loop.began_at
    )
    chosen = next((loop for loop in open_loops if wanted in (None, loop.step)), None)
    if chosen is None:
        of_step = "" if wanted is None else f" of step {wanted!r}"
        raise NoChoice(
            "no_failed_items",
            f"no loop{of_step} has items that did not complete",
            "noetl status ID shows the loops; noetl rerun ID --from STEP begins at any step",
        )
    beside = [
        loop.step
        for loop in open_loops
        if loop is not chosen and not graph.can_reach(chosen.step, loop.step)
    ]
    if beside and wanted is None:
        raise NoChoice(
            "several_failed_loops",
            f"the loops of {', '.join(map(repr, [chosen.step, *beside]))} have items that did not "
            f"complete, and {chosen.step!r} does not lead to all of them",
            "name one of them with from_step (--from STEP): what the others gave is taken over as "
            "it is",
        )
    _check_kind(chosen)
    return chosen


def check_definition(chosen: LoopOutcome, step: Step) -> None:
    """Refuse a version of the step in which its loop has another form; raises `NoChoice`."""
    loop = step.loop
    is_framed = loop is not None and (
        loop.spec.mode not in {"sequential", "parallel"} or loop.spec.policy.exec == "local"
    )
    if loop is None or loop.spec.mode != chosen.mode or is_framed != chosen.is_framed:
        raise NoChoice(
            "loop_changed",
            f"the loop of step {chosen.step!r} has another form in this version of the playbook",
            "run the version that ran then (pinned), or all items: --from STEP",
        )


def _check_kind(chosen: LoopOutcome) -> None:
    way_out = f"run all of it: from_step {chosen.step!r} without failed (--from {chosen.step})"
    if chosen.has_cursor:
        raise NoChoice(
            "items_not_repeatable",
            f"step {chosen.step!r} claims its rows from a source, which knows what became of them",
            f"make the rows that failed claimable there, then {way_out}: it claims what is there",
        )
    if chosen.is_cut_inside:
        raise NoChoice(
            "items_not_repeatable",
            f"one worker cuts the loop of step {chosen.step!r} into chunks or shards, and of their "
            "items there is no record",
            way_out,
        )
