"""Older spellings of a task's keys, and of keys wherever they stand."""

from typing import Any

from noetl_playbook.model import tools
from noetl_playbook.sections.policies import OLDER_WHEN, gather_sets
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import Level, Path, nest_value, write_fragment
from noetl_playbook.source.yaml_document import YamlDocument

_TASK_RENAMES = {
    "args": "input",
    "with": "input",
    "credential": "auth",
    "timeout_seconds": "timeout",
}
_CONDITIONS = ("expr", "when", "cond", "condition")


def rename_keys(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, renames: dict[str, str]
) -> dict[str, Any]:
    """Spell older keys as the canonical ones; a canonical key that is present wins."""
    keys = dict(raw)
    for older, canonical in renames.items():
        if older not in keys:
            continue
        value = keys.pop(older)
        reading.report_problem(
            "W902",
            (*path, older),
            f"'{older}' is an older form",
            of_key=True,
            replacement=write_fragment(canonical, value),
        )
        if keys.get(canonical) is None:
            keys[canonical] = value
            reading.record_move((*path, older), (*path, canonical))
        elif isinstance(value, dict) and isinstance(keys[canonical], dict):
            keys[canonical] = {**value, **keys[canonical]}
    return keys


def rename_task_keys(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Spell a task's older keys as the canonical ones."""
    kind = raw.get("kind", raw.get("tool"))
    kind = tools.KIND_ALIASES.get(kind, kind) if isinstance(kind, str) else None
    table = tools.KINDS.get(kind) if kind is not None else None
    known_fields = table.known_fields if table is not None else frozenset[str]()
    renames = {older: new for older, new in _TASK_RENAMES.items() if older not in known_fields}
    if "payload" in raw and "payload" not in known_fields:
        renames["payload"] = "input"
    if "tool" in raw and "kind" not in raw:
        renames["tool"] = "kind"
    task_keys = gather_sets(reading, rename_keys(reading, raw, path, renames=renames), path)
    task_keys = _rewrite_result(reading, task_keys, path, own=known_fields)
    return _rewrite_policy_list(reading, _rewrite_eval(reading, task_keys, path), path)


def _rewrite_result(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, own: frozenset[str]
) -> dict[str, Any]:
    """Rewrite a `result` block of a task, or of its `spec`, as its `output`."""
    if "result" in own:
        return raw
    spec = raw.get("spec")
    for section, where in ((raw, path), (spec, (*path, "spec"))):
        if not isinstance(section, dict) or not isinstance(section.get("result"), dict):
            continue
        block = section["result"]
        reading.report_problem(
            "W902",
            (*where, "result"),
            "a task's 'result' block is an older form",
            of_key=True,
            replacement=write_fragment("output", block),
        )
        written = raw.get("output")
        if written is None:
            reading.record_move((*where, "result"), (*path, "output"))
        fields = {key: item for key, item in section.items() if key != "result"}
        raw = fields if section is raw else {**raw, "spec": fields}
        raw["output"] = {**block, **(written if isinstance(written, dict) else {})}
    return raw


def _rewrite_policy_list(
    reading: DocumentReader, raw: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Rewrite a policy that is a list as its rules."""
    spec = raw.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("policy"), list):
        return raw
    inner_path = (*path, "spec", "policy")
    policy = {"rules": [_nest_action(item) for item in spec["policy"]]}
    reading.report_problem(
        "W902",
        inner_path,
        "a policy as a list is an older form",
        of_key=True,
        replacement=write_fragment("policy", {"rules": spell_rules(policy["rules"])}),
    )
    reading.record_move(inner_path, (*inner_path, "rules"))
    return {**raw, "spec": {**spec, "policy": policy}}


def _rewrite_eval(reading: DocumentReader, raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Rewrite `eval: [{expr, do, …}]` as the rules of the task's policy."""
    if "eval" not in raw:
        return raw
    rules_path = (*path, "spec", "policy", "rules")
    reading.record_move((*path, "eval"), rules_path)
    rules = [_nest_action(item) for item in reading.read_list(raw["eval"], (*path, "eval"))]
    reading.report_problem(
        "W902",
        (*path, "eval"),
        "'eval' is an older form",
        of_key=True,
        replacement=write_fragment("spec", nest_value(("policy", "rules"), spell_rules(rules))),
    )
    spec = dict(reading.read_mapping(raw.get("spec"), (*path, "spec")) or {})
    policy = spec.get("policy")
    spec["policy"] = {**(policy if isinstance(policy, dict) else {}), "rules": rules}
    return {**{key: item for key, item in raw.items() if key != "eval"}, "spec": spec}


def _nest_action(item: Any) -> Any:
    if not isinstance(item, dict) or "then" in item or "do" not in item:
        return item
    condition = {key: item[key] for key in _CONDITIONS if key in item}
    action = {key: value for key, value in item.items() if key not in (*_CONDITIONS, "else")}
    return {**condition, "then": action} if condition else {"else": {"then": action}}


def spell_rules(rules: list[Any]) -> list[Any]:
    """Rewrite rules in canonical form, as the suggested replacement of a problem shows them."""
    return [_spell_rule(rule) for rule in rules]


def _spell_rule(rule: Any) -> Any:
    if not isinstance(rule, dict):
        return rule
    older = next((key for key in OLDER_WHEN if key in rule and "when" not in rule), None)
    fields = {("when" if key == older else key): item for key, item in rule.items()}
    return {
        key: _spell_action(item) if key in ("then", "else") else item
        for key, item in fields.items()
    }


def _spell_action(action: Any) -> Any:
    if not isinstance(action, dict):
        return action
    if action.keys() == {"then"}:
        return {"then": _spell_action(action["then"])}
    return gather_sets(_make_silent_reading(), action, ())


def spell_task(raw: dict[str, Any]) -> dict[str, Any]:
    """Spell a task as replacements show it: no key of it is an older one."""
    task_keys = rename_task_keys(_make_silent_reading(), raw, ())
    kind = task_keys.get("kind")
    if isinstance(kind, str):
        task_keys["kind"] = tools.KIND_ALIASES.get(kind, kind)
    spec = task_keys.get("spec")
    if not isinstance(spec, dict):
        return task_keys
    stays = tools.SPEC_KEYS | tools.SPEC_FIELDS
    fields = {key: item for key, item in spec.items() if key not in stays}
    shared_fields = {key: item for key, item in spec.items() if key in stays}
    policy = shared_fields.get("policy")
    if isinstance(policy, dict) and isinstance(policy.get("rules"), list):
        shared_fields["policy"] = {**policy, "rules": spell_rules(policy["rules"])}
    task_keys = {**fields, **{key: item for key, item in task_keys.items() if key != "spec"}}
    return {**task_keys, "spec": shared_fields} if shared_fields else task_keys


def _make_silent_reading() -> DocumentReader:
    """Make a reading whose problems nobody asks for."""
    nothing = YamlDocument(value=None, values={}, keys={}, remarks=())
    return DocumentReader(nothing, level=Level.TOLERANT, readers={})
