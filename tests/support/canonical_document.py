"""The canonical document of a playbook: what normalising it again leaves unchanged."""

from typing import Any

import msgspec

from noetl_playbook.model.playbook import Playbook

_TASK_SHARED = ("name", "kind", "input", "auth", "timeout", "set", "output", "stream", "assert")


def build_document(playbook: Playbook) -> dict[str, Any]:
    """Write a playbook as its canonical document, in values of JSON types."""
    found: dict[str, Any] = msgspec.to_builtins(playbook, builtin_types=())
    metadata = found["metadata"]
    document: dict[str, Any] = {
        "apiVersion": playbook.api_version,
        "kind": playbook.kind,
        "metadata": {**metadata.pop("extra", {}), **metadata},
    }
    for key in ("executor", "workload", "vars"):
        if key in found:
            document[key] = found[key]
    if "declared_inputs" in found:
        document["inputs"] = found["declared_inputs"]
    if "keychain" in found:
        document["keychain"] = [_write_keychain(entry) for entry in found["keychain"]]
    if "workbook" in found:
        document["workbook"] = [
            {**entry, "tool": _write_task(entry["tool"])} for entry in found["workbook"]
        ]
    document["workflow"] = [_write_step(step) for step in found["workflow"]]
    return document


def _write_keychain(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry.pop("fields", {}), **entry}


def _write_step(step: dict[str, Any]) -> dict[str, Any]:
    step["tool"] = [_write_task(task) for task in step["tool"]]
    admit = step.get("spec", {}).get("policy", {}).get("admit")
    if admit is not None:
        admit["rules"] = [_write_rule(rule) for rule in admit["rules"]]
    return step


def _write_task(task: dict[str, Any]) -> dict[str, Any]:
    written: dict[str, Any] = {key: task[key] for key in _TASK_SHARED if key in task}
    written.update(task.get("fields", {}))
    policy: dict[str, Any] = {}
    if "rules" in task:
        policy["rules"] = [_write_rule(rule) for rule in task["rules"]]
    if "on_unmatched" in task:
        policy["on_unmatched"] = task["on_unmatched"]
    spec: dict[str, Any] = {}
    if policy:
        spec["policy"] = policy
    if "rate_limit" in task:
        spec["rate_limit"] = task["rate_limit"]
    return {**written, "spec": spec} if spec else written


def _write_rule(rule: dict[str, Any]) -> dict[str, Any]:
    return rule if "when" in rule else {"else": {"then": rule["then"]}}
