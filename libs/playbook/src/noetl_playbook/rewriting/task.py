"""One task with every older spelling replaced, but for what makes more tasks of it."""

from typing import Any

from noetl_playbook.older import rename_task_keys
from noetl_playbook.problems import Path, Severity
from noetl_playbook.reading import Reading
from noetl_playbook.rewriting import retry, workbook
from noetl_playbook.rewriting.retry import Entry

# Constructs that make more tasks, or a loop, of the step that a task stands in.
STRUCTURAL = ("retry", "pagination", "sink", "save", "iterator")
_RULES = ("spec", "policy", "rules")


def canonical_task(
    reading: Reading, raw: dict[str, Any], path: Path, *, defaults: Any = None
) -> dict[str, Any] | None:
    """Give a task in canonical spelling; `None` when it calls an entry that does not exist.

    `defaults` is the input of the step. A `retry` that repeats after success stays for the step's
    rewriting.
    """
    kind = raw.get("kind", raw.get("tool"))
    if kind == workbook.KIND:
        expanded = workbook.expanded(reading, raw, path, defaults=defaults)
        if expanded is None:
            return None
        raw = expanded
    raw = rename_task_keys(reading, raw, path)
    if "retry" not in raw:
        return raw
    entries = retry.entries(reading, raw["retry"], (*path, "retry"))
    failing = [entry for entry in entries if not entry.is_repeat]
    repeating = [entry for entry in entries if entry.is_repeat]
    raw = with_error_rules(reading, raw, path, failing)
    kept = {key: item for key, item in raw.items() if key != "retry"}
    return {**kept, "retry": repeating} if repeating else kept


def _written_rules(raw: dict[str, Any]) -> list[Any]:
    spec = raw.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    rules = policy.get("rules") if isinstance(policy, dict) else None
    return rules if isinstance(rules, list) else []


def with_error_rules(
    reading: Reading, raw: dict[str, Any], path: Path, entries: list[Entry]
) -> dict[str, Any]:
    """Put the rules of error retries in front of a task's own."""
    if not entries:
        return raw
    here = (*path, *_RULES)
    written = _written_rules(raw)
    rules = [retry.error_rule(reading, entry) for entry in entries]
    rebased: dict[Path, Path] = {
        (*here, len(rules) + index): (*here, index) for index in range(len(written))
    }
    for index, entry in enumerate(entries):
        at = (*here, index)
        rebased[at] = entry.path
        rebased[(*at, "when")] = entry.place("when")
        rebased[(*at, "then")] = entry.then
        rebased[(*at, "then", "attempts")] = entry.place("max_attempts")
    reading.rebase(rebased)
    spec = raw.get("spec") if isinstance(raw.get("spec"), dict) else {}
    policy = (spec or {}).get("policy")
    policy = policy if isinstance(policy, dict) else {}
    return {**raw, "spec": {**(spec or {}), "policy": {**policy, "rules": [*rules, *written]}}}


def refuse_structural(reading: Reading, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Refuse constructs that make more tasks where only one task can stand."""
    for key in STRUCTURAL:
        if key in raw:
            reading.report(
                "W903",
                (*path, key),
                f"'{key}' makes several tasks and cannot stand here",
                hint="write it on the task of a step",
                of_key=True,
                severity=Severity.ERROR,
            )
    return {key: item for key, item in raw.items() if key not in STRUCTURAL}
