"""Calls of workbook entries become the entry's own task with the caller's fields over it."""

from typing import Any

from noetl_contracts import spelling
from noetl_playbook import tools
from noetl_playbook.older import rename_task_keys
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

KIND = "workbook"
_OF_CALL = frozenset({"kind", "tool", "task"})


def expanded(
    reading: Reading, call: dict[str, Any], path: Path, *, defaults: Any
) -> dict[str, Any] | None:
    """Give the task that a call means; a call that means none is reported.

    The caller's fields are merged over the entry's, mapping by mapping. A parameter that the
    caller leaves open takes the step's input of that name.
    """
    key = "task" if isinstance(call.get("task"), str) else "name"
    found = _entry(reading, call.get(key))
    if found is None:
        known = [name for name, _ in _entries(reading)]
        name = call.get(key)
        reading.report(
            "E202",
            (*path, key),
            f"'{name}' is not in the workbook",
            hint=spelling.hint(str(name), known),
        )
        return None
    tool, assertion, origin = found
    if tool.get("kind", tool.get("tool")) == KIND:
        reading.report("E403", (*path, key), "a workbook entry cannot call another one")
        return None
    tool = _spelled(reading, tool, (*origin, "tool"))
    own = {name: item for name, item in call.items() if name not in _OF_CALL}
    own = _spelled(reading, {**own, "kind": tool.get("kind")}, path)
    own = _with_defaults(reading, own, tool.get("input"), defaults, path)
    task = _merged(reading, tool, own, (*origin, "tool"), path)
    task["name"] = call.get("name", tool.get("name"))
    if isinstance(assertion, dict):
        task["assert"] = _both(assertion, task.get("assert"))
        if "assert" not in own:
            reading.move((*origin, "assert"), (*path, "assert"))
    return task


def _with_defaults(
    reading: Reading, call: dict[str, Any], parameters: Any, defaults: Any, path: Path
) -> dict[str, Any]:
    given = call.get("input") or {}
    if not (
        isinstance(parameters, dict) and isinstance(defaults, dict) and isinstance(given, dict)
    ):
        return call
    found = dict(given)
    for name, item in parameters.items():
        if item is None and name not in given and name in defaults:
            found[name] = defaults[name]
            reading.move((*path[:2], "input", name), (*path, "input", name))
    return {**call, "input": found} if found else call


def _entries(reading: Reading) -> list[tuple[str, int]]:
    root = reading.document.value
    listed = root.get(KIND) if isinstance(root, dict) else None
    entries = listed if isinstance(listed, list) else []
    return [
        (entry["name"], index)
        for index, entry in enumerate(entries)
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]


def _entry(reading: Reading, name: Any) -> tuple[dict[str, Any], Any, Path] | None:
    """Find an entry's tool, its assertion and its place."""
    index = next((index for each, index in _entries(reading) if each == name), None)
    if index is None:
        return None
    entry = reading.document.value[KIND][index]
    tool = entry.get("tool")
    if not isinstance(tool, dict):
        return None
    return tool, entry.get("assert"), (KIND, index)


def _spelled(reading: Reading, task: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell a task's keys and its kind's fields as the canonical ones, so that they meet."""
    raw = rename_task_keys(reading, task, path)
    kind = raw.get("kind")
    table = tools.KINDS.get(tools.KIND_ALIASES.get(kind, kind)) if isinstance(kind, str) else None
    found: dict[str, Any] = {}
    for key, item in raw.items():
        canonical = table.aliases.get(key, key) if table is not None else key
        if canonical != key and canonical not in raw:
            reading.move((*path, key), (*path, canonical))
            found[canonical] = item
        else:
            found[key] = item
    return found


def _merged(
    reading: Reading, base: dict[str, Any], over: dict[str, Any], base_path: Path, path: Path
) -> dict[str, Any]:
    """Lay one mapping over another; what comes from the base keeps its place."""
    found = dict(over)
    for key, item in base.items():
        mine = over.get(key)
        if key not in over:
            reading.move((*base_path, key), (*path, key))
            found[key] = item
        elif isinstance(mine, dict) and isinstance(item, dict):
            found[key] = _merged(reading, item, mine, (*base_path, key), (*path, key))
    return {key: found[key] for key in dict.fromkeys((*base, *over))}


def _both(first: dict[str, Any], second: Any) -> dict[str, Any]:
    """Demand what either of two assertions demands."""
    found = dict(first)
    for key, item in (second if isinstance(second, dict) else {}).items():
        before = found.get(key)
        if isinstance(before, list) and isinstance(item, list):
            found[key] = list(dict.fromkeys([*before, *item]))
        else:
            found[key] = item
    return found
