"""Older spellings of keys, and older constructs that need to be rewritten by hand."""

from typing import Any

from noetl_playbook import tools
from noetl_playbook.policies import gather_sets
from noetl_playbook.problems import Path, Severity
from noetl_playbook.reading import Reading

_TASK_RENAMES = {
    "args": "input",
    "with": "input",
    "credential": "auth",
    "timeout_seconds": "timeout",
}
_UNREAD = {
    "retry": "write spec.policy.rules with do: retry",
    "pagination": "write a pipeline with do: jump (section 8)",
    "case": "write next.arcs with when, or rules",
    "sink": "write the sink as the next task",
    "save": "write the save as the next task",
    "iterator": "write the step's loop",
}


def rename(
    reading: Reading, raw: dict[str, Any], path: Path, *, renames: dict[str, str]
) -> dict[str, Any]:
    """Spell older keys as the canonical ones; a canonical key that is present wins."""
    found = dict(raw)
    for older, canonical in renames.items():
        if older not in found:
            continue
        reading.report(
            "W902",
            (*path, older),
            f"'{older}' is an older form",
            of_key=True,
            replacement=f"{canonical}: …",
        )
        value = found.pop(older)
        if found.get(canonical) is None:
            found[canonical] = value
            reading.move((*path, older), (*path, canonical))
        elif isinstance(value, dict) and isinstance(found[canonical], dict):
            found[canonical] = {**value, **found[canonical]}
    return found


def refuse_unread(
    reading: Reading, raw: dict[str, Any], path: Path, *, known: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Refuse older constructs that this release does not rewrite."""
    for key, advice in _UNREAD.items():
        if key in raw and key not in known:
            reading.report(
                "W903",
                (*path, key),
                f"'{key}' is an older form that this release does not read",
                hint=advice,
                of_key=True,
                severity=Severity.ERROR,
            )
    return {key: item for key, item in raw.items() if key not in _UNREAD or key in known}


def rename_task_keys(reading: Reading, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell a task's older keys as the canonical ones."""
    kind = raw.get("kind")
    table = tools.KINDS.get(kind) if isinstance(kind, str) else None
    own = table.known if table is not None else frozenset[str]()
    renames = {older: new for older, new in _TASK_RENAMES.items() if older not in own}
    if "payload" in raw and "payload" not in own:
        renames["payload"] = "input"
    found = refuse_unread(reading, raw, path, known=own)
    if "tool" in found and "kind" not in found:
        renames["tool"] = "kind"
    found = gather_sets(reading, rename(reading, found, path, renames=renames), path)
    return _eval_as_rules(reading, found, path)


def _eval_as_rules(reading: Reading, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Rewrite `eval: [{expr, do, …}]` as the rules of the task's policy."""
    if "eval" not in raw:
        return raw
    reading.report(
        "W902",
        (*path, "eval"),
        "'eval' is an older form",
        of_key=True,
        replacement="spec: {policy: {rules: [{when: …, then: {do: …}}]}}",
    )
    rules_path = (*path, "spec", "policy", "rules")
    reading.move((*path, "eval"), rules_path)
    rules = [_eval_rule(item) for item in reading.listed(raw["eval"], (*path, "eval"))]
    spec = dict(reading.mapping(raw.get("spec"), (*path, "spec")) or {})
    policy = spec.get("policy")
    spec["policy"] = {**(policy if isinstance(policy, dict) else {}), "rules": rules}
    return {**{key: item for key, item in raw.items() if key != "eval"}, "spec": spec}


def _eval_rule(item: Any) -> Any:
    if not isinstance(item, dict) or "then" in item or "do" not in item:
        return item
    condition = {key: item[key] for key in ("expr", "when") if key in item}
    action = {key: value for key, value in item.items() if key not in ("expr", "when", "else")}
    return {**condition, "then": action} if condition else {"else": {"then": action}}
