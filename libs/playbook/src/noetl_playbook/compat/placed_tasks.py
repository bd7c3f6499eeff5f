"""Tasks of a pipeline while it is being rewritten, each with the place that it came from."""

from typing import Any

from msgspec import Struct, field

from noetl_playbook.compat import template_renames
from noetl_playbook.compat.legacy_keys import spell_task
from noetl_playbook.model import language_names, tools
from noetl_playbook.sections.auth_fields import INLINE_DATABASE
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, write_flow, write_fragment


class PlacedTask(Struct, kw_only=True):
    """A raw task; `path` is where it, or what it was made from, can be read.

    `moves` lead from a place inside the task to the place of what it was made from. `gate` is
    the expression on which a task runs that may be jumped over.
    """

    raw: dict[str, Any]
    path: Path
    moves: dict[Path, Path] = field(default_factory=dict)
    gate: str | None = None

    @property
    def task_name(self) -> str:
        """The task's name; every placed task has one."""
        return str(self.raw["name"])


def write_pipeline(
    reading: DocumentReader, tasks: list[PlacedTask], path: Path
) -> list[dict[str, Any]]:
    """Give the tasks as the list of `tool`, so that problems still show what was written."""
    rebased: dict[Path, Path] = {}
    for index, task in enumerate(tasks):
        inner_path = (*path, index)
        rebased[inner_path] = task.path
        rebased.update({(*inner_path, *inner): outer for inner, outer in task.moves.items()})
    reading.record_moves(rebased)
    return [task.raw for task in tasks]


def insert_gates(tasks: list[PlacedTask]) -> list[PlacedTask]:
    """Put before each task that has a condition a task that jumps past it."""
    placed_tasks: list[PlacedTask] = []
    for index, task in enumerate(tasks):
        if task.gate is not None:
            after = tasks[index + 1] if index + 1 < len(tasks) else None
            name = f"{task.task_name}__gate"
            past = {"do": "break"} if after is None else {"do": "jump", "to": _entry_name(after)}
            rules = [
                {"when": "{{ " + task.gate + " }}", "then": {"do": "continue"}},
                {"else": {"then": past}},
            ]
            raw = {"name": name, "kind": "noop", "spec": {"policy": {"rules": rules}}}
            placed_tasks.append(PlacedTask(raw=raw, path=task.path))
        placed_tasks.append(task)
    return placed_tasks


def _entry_name(task: PlacedTask) -> str:
    return task.task_name if task.gate is None else f"{task.task_name}__gate"


def write_result_path(task: dict[str, Any], path: str = "") -> str:
    """Write how a later task reads the value of a task: its body, its rows, or all of it."""
    root = template_renames.write_reference(str(task["name"]))
    match task.get("kind"), task.get("action", "get"), task.get("operation"):
        case ("http", _, _):
            root += ".body"
        case ("artifact", "get", _) | ("nats", _, "object_get"):
            root += ".data"
        case ("nats", _, "kv_get"):
            root += ".value"
        case (("postgres" | "duckdb" | "spark"), _, _) if not path:
            root += ".rows"
        case _:
            pass
    return template_renames.append_path(root, path)


def map_response_names(
    task: dict[str, Any], *, collects: bool, root: str | None = None
) -> dict[str, str]:
    """Say how `response` and `result` are written once they are a task's result.

    A collected list is kept as `data`, so that an http body must be read as `body`.
    """
    reference = template_renames.write_reference(str(task["name"])) if root is None else root
    response_names = {"response": reference, "result": reference}
    if collects and task.get("kind") == "http":
        response_names |= {"response.data": f"{reference}.body", "result.data": f"{reference}.body"}
    return response_names


def is_derived_name(name: str, *, step: str) -> bool:
    """Tell whether a task was named after its step, whose name need not be an identifier."""
    return name.startswith(f"{step}_") and not language_names.is_identifier(step)


# What a step may say beside `tool: K` and means its task.
BESIDE = tools.TASK_FIELDS | {
    *("assert", "stream", "auth", "credential", "eval", "timeout_seconds", "description"),
    *INLINE_DATABASE,
}


def list_placed_tasks(
    reading: DocumentReader, step: dict[str, Any], path: Path, *, step_name: str
) -> list[PlacedTask]:
    """List a step's tasks with their names; what is no mapping is reported and left out."""
    tool = step.get("tool")
    inner_path = (*path, "tool")
    default = f"{step_name}_task"
    if isinstance(tool, list):
        return _list_tasks(reading, tool, inner_path)
    if isinstance(tool, str):
        return _take_beside(reading, step, path, default=default)
    if isinstance(tool, dict) and "kind" not in tool and _is_labelled(tool):
        tasks = [{"name": label, **task} for label, task in tool.items()]
        reading.report_problem(
            "W902",
            inner_path,
            "tasks by name are an older form of a list",
            replacement=write_fragment("tool", [spell_task(task) for task in tasks]),
        )
        return [PlacedTask(raw=task, path=(*inner_path, task["name"])) for task in tasks]
    if tool is None:
        return _report_absent(reading, step, path, default=default)
    if not isinstance(tool, dict):
        reading.report_wrong_type(inner_path, "a task", tool)
        return []
    return [PlacedTask(raw={"name": default, **tool}, path=inner_path)]


def _is_labelled(tool: dict[str, Any]) -> bool:
    return bool(tool) and all(
        isinstance(task, dict) and ("kind" in task or "tool" in task) for task in tool.values()
    )


def _list_tasks(reading: DocumentReader, tool: list[Any], path: Path) -> list[PlacedTask]:
    if not tool:
        reading.report_problem("E104", path, "the list of tasks is empty", hint="use kind: noop")
    placed_tasks: list[PlacedTask] = []
    for index, item in enumerate(tool):
        inner_path = (*path, index)
        if not isinstance(item, dict):
            reading.report_wrong_type(inner_path, "a task", item)
        elif len(item) == 1 and _is_labelled(item):
            ((label, task),) = item.items()
            named_task = {"name": label, **task}
            reading.report_problem(
                "W902",
                inner_path,
                f"the label '{label}' is an older form of 'name'",
                replacement=write_flow(spell_task(named_task)),
            )
            placed_tasks.append(PlacedTask(raw=named_task, path=(*inner_path, label)))
        else:
            placed_tasks.append(PlacedTask(raw={"name": f"task_{index}", **item}, path=inner_path))
    return placed_tasks


def _take_beside(
    reading: DocumentReader, step: dict[str, Any], path: Path, *, default: str
) -> list[PlacedTask]:
    kind = str(step["tool"])
    fields = {key: item for key, item in step.items() if key in BESIDE}
    if kind == "workbook" and isinstance(step.get("name"), str):
        fields["name"] = step["name"]
    reading.report_problem(
        "W902",
        (*path, "tool"),
        "a tool's fields beside it on the step are an older form",
        replacement=write_fragment("tool", spell_task({"kind": kind, **fields})),
    )
    reading.record_move((*path, "tool"), (*path, "kind"))
    return [PlacedTask(raw={"name": default, "kind": kind, **fields}, path=path)]


def _report_absent(
    reading: DocumentReader, step: dict[str, Any], path: Path, *, default: str
) -> list[PlacedTask]:
    beside = [key for key in step if key in tools.TASK_FIELDS]
    if beside:
        reading.report_problem(
            "E104",
            (*path, beside[0]),
            f"'{beside[0]}' stands on a step that has no 'tool'",
            hint="write tool: {kind: …} with the fields in it",
            of_key=True,
        )
        return []
    reading.report_problem(
        "E106",
        path,
        "the step has neither 'tool' nor task fields",
        hint="use kind: noop",
        replacement="tool: {kind: noop}",
    )
    return [PlacedTask(raw={"name": default, "kind": "noop"}, path=path)]
