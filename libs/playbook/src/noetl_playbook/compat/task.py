"""Older forms of tasks: calls of workbook entries become the entry's task; rules are rewritten."""

from typing import Any

from noetl_contracts import spelling
from noetl_playbook.compat import retry
from noetl_playbook.compat.legacy_keys import rename_task_keys
from noetl_playbook.compat.retry import RetryEntry
from noetl_playbook.model import tools
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, Severity

KIND = "workbook"
_OF_CALL = frozenset({"kind", "tool", "task"})


def expand_call(
    reading: DocumentReader, call: dict[str, Any], path: Path, *, defaults: Any
) -> dict[str, Any] | None:
    """Give the task that a call means; a call that means none is reported.

    The caller's fields are merged over the entry's, mapping by mapping. A parameter that the
    caller leaves open takes the step's input of that name.
    """
    key = "task" if isinstance(call.get("task"), str) else "name"
    entry = _find_entry(reading, call.get(key))
    if entry is None:
        names = [name for name, _ in _list_entries(reading)]
        name = call.get(key)
        reading.report_problem(
            "E202",
            (*path, key),
            f"'{name}' is not in the workbook",
            hint=spelling.suggest_word(str(name), names),
        )
        return None
    tool, assertion, origin = entry
    if tool.get("kind", tool.get("tool")) == KIND:
        reading.report_problem("E403", (*path, key), "a workbook entry cannot call another one")
        return None
    tool = _spell_keys(reading, tool, (*origin, "tool"))
    fields = {name: item for name, item in call.items() if name not in _OF_CALL}
    fields = _spell_keys(reading, {**fields, "kind": tool.get("kind")}, path)
    fields = _fill_defaults(reading, fields, tool.get("input"), defaults, path)
    task = _merge_mappings(reading, tool, fields, (*origin, "tool"), path)
    task["name"] = call.get("name", tool.get("name"))
    if isinstance(assertion, dict):
        task["assert"] = _join_assertions(assertion, task.get("assert"))
        if "assert" not in fields:
            reading.record_move((*origin, "assert"), (*path, "assert"))
    return task


def _fill_defaults(
    reading: DocumentReader, call: dict[str, Any], parameters: Any, defaults: Any, path: Path
) -> dict[str, Any]:
    inputs = call.get("input") or {}
    if not (
        isinstance(parameters, dict) and isinstance(defaults, dict) and isinstance(inputs, dict)
    ):
        return call
    filled = dict(inputs)
    for name, item in parameters.items():
        if item is None and name not in inputs and name in defaults:
            filled[name] = defaults[name]
            reading.record_move((*path[:2], "input", name), (*path, "input", name))
    return {**call, "input": filled} if filled else call


def _list_entries(reading: DocumentReader) -> list[tuple[str, int]]:
    root = reading.document.value
    section = root.get(KIND) if isinstance(root, dict) else None
    entries = section if isinstance(section, list) else []
    return [
        (entry["name"], index)
        for index, entry in enumerate(entries)
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    ]


def _find_entry(reading: DocumentReader, name: Any) -> tuple[dict[str, Any], Any, Path] | None:
    """Find an entry's tool, its assertion and its place."""
    index = next((index for item, index in _list_entries(reading) if item == name), None)
    if index is None:
        return None
    entry = reading.document.value[KIND][index]
    tool = entry.get("tool")
    if not isinstance(tool, dict):
        return None
    return tool, entry.get("assert"), (KIND, index)


def _spell_keys(reading: DocumentReader, task: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell a task's keys and its kind's fields as the canonical ones, so that they meet."""
    raw = rename_task_keys(reading, task, path)
    kind = raw.get("kind")
    table = tools.KINDS.get(tools.KIND_ALIASES.get(kind, kind)) if isinstance(kind, str) else None
    fields: dict[str, Any] = {}
    for key, item in raw.items():
        canonical = table.aliases.get(key, key) if table is not None else key
        if canonical != key and canonical not in raw:
            reading.record_move((*path, key), (*path, canonical))
            fields[canonical] = item
        else:
            fields[key] = item
    return fields


def _merge_mappings(
    reading: DocumentReader, base: dict[str, Any], over: dict[str, Any], base_path: Path, path: Path
) -> dict[str, Any]:
    """Lay one mapping over another; what comes from the base keeps its place."""
    mappings = dict(over)
    for key, item in base.items():
        own_value = over.get(key)
        if key not in over:
            reading.record_move((*base_path, key), (*path, key))
            mappings[key] = item
        elif isinstance(own_value, dict) and isinstance(item, dict):
            mappings[key] = _merge_mappings(
                reading, item, own_value, (*base_path, key), (*path, key)
            )
    return {key: mappings[key] for key in dict.fromkeys((*base, *over))}


def _join_assertions(first: dict[str, Any], second: Any) -> dict[str, Any]:
    """Demand what either of two assertions demands."""
    assertions = dict(first)
    for key, item in (second if isinstance(second, dict) else {}).items():
        before = assertions.get(key)
        if isinstance(before, list) and isinstance(item, list):
            assertions[key] = list(dict.fromkeys([*before, *item]))
        else:
            assertions[key] = item
    return assertions


# Constructs that make more tasks, or a loop, of the step that a task stands in.
REPEAT_FORMS = ("retry", "pagination")
STRUCTURAL = (*REPEAT_FORMS, "sink", "save", "iterator")
_RULES = ("spec", "policy", "rules")


def rewrite_task(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, defaults: Any = None
) -> dict[str, Any] | None:
    """Give a task in canonical spelling; `None` when it calls an entry that does not exist.

    `defaults` is the input of the step. A `retry` that repeats after success stays for the step's
    rewriting.
    """
    kind = raw.get("kind", raw.get("tool"))
    if kind == KIND:
        expanded = expand_call(reading, raw, path, defaults=defaults)
        if expanded is None:
            return None
        raw = expanded
    raw = rename_task_keys(reading, raw, path)
    if "retry" not in raw:
        return raw
    entries = retry.read_retry_entries(reading, raw["retry"], (*path, "retry"))
    failing = [entry for entry in entries if not entry.is_repeat]
    repeating = [entry for entry in entries if entry.is_repeat]
    raw = prepend_error_rules(reading, raw, path, failing)
    fields = {key: item for key, item in raw.items() if key != "retry"}
    return {**fields, "retry": repeating} if repeating else fields


def _find_written_rules(raw: dict[str, Any]) -> list[Any]:
    spec = raw.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    rules = policy.get("rules") if isinstance(policy, dict) else None
    return rules if isinstance(rules, list) else []


def prepend_error_rules(
    reading: DocumentReader, raw: dict[str, Any], path: Path, entries: list[RetryEntry]
) -> dict[str, Any]:
    """Put the rules of error retries in front of a task's own."""
    if not entries:
        return raw
    inner_path = (*path, *_RULES)
    own_rules = _find_written_rules(raw)
    rules = [retry.build_error_rule(reading, entry) for entry in entries]
    rebased: dict[Path, Path] = {
        (*inner_path, len(rules) + index): (*inner_path, index) for index in range(len(own_rules))
    }
    for index, entry in enumerate(entries):
        at = (*inner_path, index)
        rebased[at] = entry.path
        rebased[(*at, "when")] = entry.build_key_path("when")
        rebased[(*at, "then")] = entry.then
        rebased[(*at, "then", "attempts")] = entry.build_key_path("max_attempts")
    reading.record_moves(rebased)
    spec = raw.get("spec") if isinstance(raw.get("spec"), dict) else {}
    policy = (spec or {}).get("policy")
    policy = policy if isinstance(policy, dict) else {}
    return {**raw, "spec": {**(spec or {}), "policy": {**policy, "rules": [*rules, *own_rules]}}}


def refuse_structural(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Refuse constructs that make more tasks where only one task can stand."""
    for key in STRUCTURAL:
        if key in raw:
            reading.report_problem(
                "W903",
                (*path, key),
                f"'{key}' makes several tasks and cannot stand here",
                hint="write it on the task of a step",
                of_key=True,
                severity=Severity.ERROR,
            )
    return {key: item for key, item in raw.items() if key not in STRUCTURAL}
