"""Older keys of steps."""

from typing import Any

from noetl_playbook.compat.legacy_keys import rename_keys
from noetl_playbook.sections.policies import OLDER_SETS, gather_sets, rename_older_when
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Path, nest_value, write_fragment

_OLDER_STEP = {"name": "step", "args": "input", "with": "input"}
_OLDER_SETS = {"vars": "ctx.", **OLDER_SETS}


def rename_step_keys(reading: DocumentReader, value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell a step's older keys as the canonical ones."""
    renames = {old: new for old, new in _OLDER_STEP.items() if old != "name" or "step" not in value}
    if "type" in value and "tool" not in value:
        value = _rename_type(reading, value, path)
    raw = rename_keys(reading, value, path, renames=renames)
    raw = gather_sets(reading, raw, path, prefixes=_OLDER_SETS)
    if "timeout" in raw:
        raw = _move_timeout(reading, raw, path)
    raw = rename_older_when(reading, raw, path) if "condition" in raw else raw
    raw = _rewrite_when(reading, raw, path) if "when" in raw else raw
    return _rewrite_admit_mode(reading, raw, path)


def _rename_type(reading: DocumentReader, value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell `type` as `tool`; a kind's name is told of with the fields that stand beside it."""
    if not isinstance(value["type"], str):
        return rename_keys(reading, value, path, renames={"type": "tool"})
    reading.record_move((*path, "type"), (*path, "tool"))
    return {("tool" if key == "type" else key): item for key, item in value.items()}


def _rewrite_admit_mode(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Rewrite the older admission mode `inclusive`."""
    spec = raw.get("spec")
    policy = spec.get("policy") if isinstance(spec, dict) else None
    admit = policy.get("admit") if isinstance(policy, dict) else None
    if not isinstance(admit, dict) or admit.get("mode") != "inclusive":
        return raw
    reading.report_problem(
        "W902",
        (*path, "spec", "policy", "admit", "mode"),
        "admission mode 'inclusive' is an older form",
        replacement="mode: exclusive",
    )
    admit_mode = {**admit, "mode": "exclusive"}
    return {**raw, "spec": {**(spec or {}), "policy": {**(policy or {}), "admit": admit_mode}}}


def _move_timeout(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    reading.report_problem(
        "W902",
        (*path, "timeout"),
        "a step's timeout belongs under spec",
        of_key=True,
        replacement=write_fragment("spec", {"timeout": raw["timeout"]}),
    )
    reading.record_move((*path, "timeout"), (*path, "spec", "timeout"))
    spec = raw.get("spec") if isinstance(raw.get("spec"), dict) else {}
    fields = {key: item for key, item in raw.items() if key != "timeout"}
    return {**fields, "spec": {"timeout": raw["timeout"], **(spec or {})}}


def _rewrite_when(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    rules = [
        {"when": raw["when"], "then": {"allow": True}},
        {"else": {"then": {"allow": False}}},
    ]
    reading.report_problem(
        "W902",
        (*path, "when"),
        "a step's 'when' is an older form",
        of_key=True,
        replacement=write_fragment("spec", nest_value(("policy", "admit", "rules"), rules)),
    )
    spec = dict(raw["spec"]) if isinstance(raw.get("spec"), dict) else {}
    policy = dict(spec["policy"]) if isinstance(spec.get("policy"), dict) else {}
    policy.setdefault("admit", {"rules": rules})
    reading.record_move((*path, "when"), (*path, "spec", "policy", "admit", "rules", 0, "when"))
    spec["policy"] = policy
    return {**{key: item for key, item in raw.items() if key != "when"}, "spec": spec}
