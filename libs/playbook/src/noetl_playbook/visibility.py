"""Names that exist but not here, names that hide others, and writes that may get lost."""

from typing import Any, Literal

from noetl_playbook import names
from noetl_playbook.model import Playbook, Step
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

_LOOP_NAMES = frozenset({"loop_index", "loop", "frame"})
_ITER_ALWAYS = frozenset({"index", "calls", "next_call", "parent"})


def written(step: Step, scope: Literal["ctx", "iter"]) -> set[str]:
    """List the top-level keys that a step may set in a scope."""
    blocks: list[dict[str, Any]] = [step.set]
    blocks += [arc.set for arc in (step.next.arcs if step.next else ())]
    return _keys(blocks, scope) | written_by_tasks(step, scope)


def written_by_tasks(step: Step, scope: Literal["ctx", "iter"]) -> set[str]:
    """List the top-level keys that the tasks of a step may set in a scope."""
    blocks = [task.set for task in step.tool]
    blocks += [rule.then.set for task in step.tool for rule in task.rules]
    return _keys(blocks, scope)


def _keys(blocks: list[dict[str, Any]], scope: str) -> set[str]:
    targets = (names.split_target(key) for block in blocks for key in block)
    return {found[1].split(".")[0] for found in targets if found and found[0] == scope}


def check_place(
    reading: Reading, path: Path, step: Step, *, section: str, read: frozenset[str]
) -> None:
    """Report names that a template reads where they do not exist, and lost-update risks."""
    roots = {each.split(".")[0] for each in read}
    if section in ("next", "set") and "iter" in roots:
        reading.report("E304", path, "'iter' exists inside the step's tasks only")
    if section != "tool":
        return
    if "fanin" in roots and step.reduce is None:
        reading.report("E304", path, "'fanin' exists in arcs and in the step's set only")
    if step.loop is None and step.reduce is None:
        for name in sorted(roots & _LOOP_NAMES):
            reading.report("E304", path, f"'{name}' exists inside a loop only")
        _check_scratch(reading, path, step, read)
    _check_lost_update(reading, path, step, read)


def _check_scratch(reading: Reading, path: Path, step: Step, read: frozenset[str]) -> None:
    known = written(step, "iter") | _ITER_ALWAYS
    for each in sorted(read):
        root, _, rest = each.partition(".")
        name = rest.split(".")[0]
        if root == "iter" and name and name not in known and not name.startswith("_"):
            reading.report(
                "E304", path, f"'iter.{name}' is never set here, and the step has no loop"
            )


def _check_lost_update(reading: Reading, path: Path, step: Step, read: frozenset[str]) -> None:
    if step.loop is None or step.loop.spec.mode == "sequential":
        return
    for key in sorted(written_by_tasks(step, "ctx")):
        if f"ctx.{key}" in read or any(each.startswith(f"ctx.{key}.") for each in read):
            reading.report(
                "W907",
                path,
                f"parallel bodies read and write 'ctx.{key}'; the last write wins",
                hint="use results, accumulate or a reduce step",
            )


def check_hidden(reading: Reading, playbook: Playbook) -> None:
    """Report names that a fixed name hides."""
    for key in playbook.workload:
        _report_hidden(reading, ("workload", key), key, reach=f"workload.{key}")
    for index, step in zip(reading.step_indices, playbook.workflow, strict=True):
        path = ("workflow", index)
        _report_hidden(reading, (*path, "step"), step.step, reach=f"steps.{step.step}")
        for key in written(step, "ctx"):
            _report_hidden(reading, path, key, reach=f"ctx.{key}")
        for task in step.tool:
            _report_hidden(reading, (*path, "tool"), task.name, reach=f"results.{task.name}")


def _report_hidden(reading: Reading, path: Path, name: str, *, reach: str) -> None:
    if name in names.FIXED_NAMES:
        reading.report(
            "W908", path, f"the fixed name '{name}' hides this", hint=f"reach it as {reach}"
        )
