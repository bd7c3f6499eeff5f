"""Steps and arcs of a playbook with their places in the document."""

from collections.abc import Iterator

from noetl_playbook.model import Arc, Playbook, Step
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading


def placed(reading: Reading, playbook: Playbook) -> Iterator[tuple[Path, Step]]:
    """Pair every step with its place in the document."""
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        yield ("workflow", index), step


def arcs(step: Step, path: Path) -> Iterator[tuple[Path, Arc]]:
    """Pair every arc of a step with its place."""
    for index, arc in enumerate(step.next.arcs if step.next else ()):
        yield (*path, "next", "arcs", index), arc
