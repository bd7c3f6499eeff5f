"""The shapes that a step's `tool` may have, and the one list of tasks that each stands for."""

from typing import Any

from noetl_playbook import tools
from noetl_playbook.auth_forms import INLINE_DATABASE
from noetl_playbook.fragments import flow, fragment
from noetl_playbook.older import spelled_task
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.rewriting.placed import PlacedTask

# What a step may say beside `tool: K` and means its task.
BESIDE = tools.TASK_FIELDS | {
    *("assert", "stream", "auth", "credential", "eval", "timeout_seconds", "description"),
    *INLINE_DATABASE,
}


def placed_tasks(
    reading: Reading, step: dict[str, Any], path: Path, *, step_name: str
) -> list[PlacedTask]:
    """List a step's tasks with their names; what is no mapping is reported and left out."""
    tool = step.get("tool")
    here = (*path, "tool")
    default = f"{step_name}_task"
    if isinstance(tool, list):
        return _listed(reading, tool, here)
    if isinstance(tool, str):
        return _beside(reading, step, path, default=default)
    if isinstance(tool, dict) and "kind" not in tool and _is_labelled(tool):
        written = [{"name": label, **task} for label, task in tool.items()]
        reading.report(
            "W902",
            here,
            "tasks by name are an older form of a list",
            replacement=fragment("tool", [spelled_task(task) for task in written]),
        )
        return [PlacedTask(raw=task, path=(*here, task["name"])) for task in written]
    if tool is None:
        return _absent(reading, step, path, default=default)
    if not isinstance(tool, dict):
        reading.wrong(here, "a task", tool)
        return []
    return [PlacedTask(raw={"name": default, **tool}, path=here)]


def _is_labelled(tool: dict[str, Any]) -> bool:
    return bool(tool) and all(
        isinstance(task, dict) and ("kind" in task or "tool" in task) for task in tool.values()
    )


def _listed(reading: Reading, tool: list[Any], path: Path) -> list[PlacedTask]:
    if not tool:
        reading.report("E104", path, "the list of tasks is empty", hint="use kind: noop")
    found: list[PlacedTask] = []
    for index, item in enumerate(tool):
        here = (*path, index)
        if not isinstance(item, dict):
            reading.wrong(here, "a task", item)
        elif len(item) == 1 and _is_labelled(item):
            ((label, task),) = item.items()
            named = {"name": label, **task}
            reading.report(
                "W902",
                here,
                f"the label '{label}' is an older form of 'name'",
                replacement=flow(spelled_task(named)),
            )
            found.append(PlacedTask(raw=named, path=(*here, label)))
        else:
            found.append(PlacedTask(raw={"name": f"task_{index}", **item}, path=here))
    return found


def _beside(
    reading: Reading, step: dict[str, Any], path: Path, *, default: str
) -> list[PlacedTask]:
    kind = str(step["tool"])
    taken = {key: item for key, item in step.items() if key in BESIDE}
    if kind == "workbook" and isinstance(step.get("name"), str):
        taken["name"] = step["name"]
    reading.report(
        "W902",
        (*path, "tool"),
        "a tool's fields beside it on the step are an older form",
        replacement=fragment("tool", spelled_task({"kind": kind, **taken})),
    )
    reading.move((*path, "tool"), (*path, "kind"))
    return [PlacedTask(raw={"name": default, "kind": kind, **taken}, path=path)]


def _absent(
    reading: Reading, step: dict[str, Any], path: Path, *, default: str
) -> list[PlacedTask]:
    beside = [key for key in step if key in tools.TASK_FIELDS]
    if beside:
        reading.report(
            "E104",
            (*path, beside[0]),
            f"'{beside[0]}' stands on a step that has no 'tool'",
            hint="write tool: {kind: …} with the fields in it",
            of_key=True,
        )
        return []
    reading.report(
        "E106",
        path,
        "the step has neither 'tool' nor task fields",
        hint="use kind: noop",
        replacement="tool: {kind: noop}",
    )
    return [PlacedTask(raw={"name": default, "kind": "noop"}, path=path)]
