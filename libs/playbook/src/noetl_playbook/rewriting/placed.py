"""Tasks of a pipeline while it is being rewritten, each with the place that it came from."""

from typing import Any

from msgspec import Struct, field

from noetl_playbook import names
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading
from noetl_playbook.rewriting import renaming


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
    def name(self) -> str:
        """The task's name; every placed task has one."""
        return str(self.raw["name"])


def write_pipeline(reading: Reading, tasks: list[PlacedTask], path: Path) -> list[dict[str, Any]]:
    """Give the tasks as the list of `tool`, so that problems still show what was written."""
    rebased: dict[Path, Path] = {}
    for index, task in enumerate(tasks):
        here = (*path, index)
        rebased[here] = task.path
        rebased.update({(*here, *inner): outer for inner, outer in task.moves.items()})
    reading.rebase(rebased)
    return [task.raw for task in tasks]


def with_gates(tasks: list[PlacedTask]) -> list[PlacedTask]:
    """Put before each task that has a condition a task that jumps past it."""
    found: list[PlacedTask] = []
    for index, task in enumerate(tasks):
        if task.gate is not None:
            after = tasks[index + 1] if index + 1 < len(tasks) else None
            name = f"{task.name}__gate"
            past = {"do": "break"} if after is None else {"do": "jump", "to": _first_of(after)}
            rules = [
                {"when": "{{ " + task.gate + " }}", "then": {"do": "continue"}},
                {"else": {"then": past}},
            ]
            raw = {"name": name, "kind": "noop", "spec": {"policy": {"rules": rules}}}
            found.append(PlacedTask(raw=raw, path=task.path))
        found.append(task)
    return found


def _first_of(task: PlacedTask) -> str:
    return task.name if task.gate is None else f"{task.name}__gate"


def result_path(task: dict[str, Any], path: str = "") -> str:
    """Write how a later task reads the value of a task: its body, its rows, or all of it."""
    root = renaming.reference(str(task["name"]))
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
    return renaming.with_path(root, path)


def response_names(
    task: dict[str, Any], *, collects: bool, root: str | None = None
) -> dict[str, str]:
    """Say how `response` and `result` are written once they are a task's result.

    A collected list is kept as `data`, so that an http body must be read as `body`.
    """
    own = renaming.reference(str(task["name"])) if root is None else root
    found = {"response": own, "result": own}
    if collects and task.get("kind") == "http":
        found |= {"response.data": f"{own}.body", "result.data": f"{own}.body"}
    return found


def is_derived(name: str, *, step: str) -> bool:
    """Tell whether a task was named after its step, whose name need not be an identifier."""
    return name.startswith(f"{step}_") and not names.is_identifier(step)
