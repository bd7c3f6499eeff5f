"""Older keys of steps, loops and tasks, and of keys wherever they stand."""

from typing import Any

from noetl_playbook.model import tools
from noetl_playbook.sections.policies import (
    OLDER_SETS,
    OLDER_WHEN,
    gather_sets,
    rename_older_when,
)
from noetl_playbook.source.document_reader import DocumentReader
from noetl_playbook.source.problems import (
    Level,
    Path,
    nest_value,
    write_flow,
    write_fragment,
)
from noetl_playbook.source.yaml_document import YamlDocument

_TASK_RENAMES = {
    "args": "input",
    "with": "input",
    "credential": "auth",
    "timeout_seconds": "timeout",
}
_CONDITIONS = ("expr", "when", "cond", "condition")
_OLDER_STEP = {"name": "step", "args": "input", "with": "input"}
_OLDER_SETS = {"vars": "ctx.", **OLDER_SETS}
_OLDER_LOOP = {"collection": "in", "element": "iterator", "item": "iterator", "as": "iterator"}
_OLDER_ITERATOR = {"items": "in", "collection": "in", "item": "iterator", "element": "iterator"}
_ITERATOR_KEYS = ("iterator", "element", "item", "as")
_OLDER_SPEC = {
    **dict.fromkeys(("concurrency", "max_concurrency", "parallelism"), "max_in_flight"),
    "batch_size": "chunk_size",
}
_SPEC_KEYS = frozenset(
    {"mode", "max_in_flight", "chunk_size", "frame", "fanout", "collect", "max_attempts", "policy"}
)


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
    for section, section_path in ((raw, path), (spec, (*path, "spec"))):
        if not isinstance(section, dict) or not isinstance(section.get("result"), dict):
            continue
        block = section["result"]
        reading.report_problem(
            "W902",
            (*section_path, "result"),
            "a task's 'result' block is an older form",
            of_key=True,
            replacement=write_fragment("output", block),
        )
        written_output = raw.get("output")
        if written_output is None:
            reading.record_move((*section_path, "result"), (*path, "output"))
        fields = {key: item for key, item in section.items() if key != "result"}
        raw = fields if section is raw else {**raw, "spec": fields}
        raw["output"] = {**block, **(written_output if isinstance(written_output, dict) else {})}
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
    empty_document = YamlDocument(value=None, values={}, keys={}, text_problems=())
    return DocumentReader(empty_document, level=Level.TOLERANT, readers={})


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


def rewrite_iterator(
    reading: DocumentReader, value: dict[str, Any], path: Path, loop_path: Path
) -> dict[str, Any]:
    """Write the older `iterator` of a task as the loop of its step, at `loop_path`."""
    loop: dict[str, Any] = {"iterator": "item"}
    spec: dict[str, Any] = {}
    for key, item in value.items():
        canonical = _OLDER_ITERATOR.get(key, key)
        inner = _OLDER_SPEC.get(key, key)
        if inner in _SPEC_KEYS:
            spec[inner] = _rename_mode(item)
            reading.record_move((*path, key), (*loop_path, "spec", inner))
        else:
            loop[canonical] = item
            reading.record_move((*path, key), (*loop_path, canonical))
    return {**loop, "spec": spec} if spec else loop


def rewrite_loop(reading: DocumentReader, value: Any, path: Path) -> Any:
    """Spell a loop's older keys as canonical ones, and move those of its spec down into it."""
    if not isinstance(value, dict):
        return value
    if "collection" in value and not any(value.get(key) for key in _ITERATOR_KEYS):
        value = _name_item(reading, value, path)
    raw = rename_keys(reading, value, path, renames=_OLDER_LOOP)
    keys = {key for key in raw if key in _SPEC_KEYS or key in _OLDER_SPEC}
    if keys:
        spec = dict(reading.read_mapping(raw.get("spec"), (*path, "spec")) or {})
        for key in sorted(keys):
            canonical = _OLDER_SPEC.get(key, key)
            reading.report_problem(
                "W902",
                (*path, key),
                f"'{key}' on the loop is an older form",
                of_key=True,
                replacement=write_fragment("spec", {canonical: _rename_mode(raw[key])}),
            )
            spec.setdefault(canonical, _rename_mode(raw.pop(key)))
            reading.record_move((*path, key), (*path, "spec", canonical))
        raw["spec"] = spec
    if isinstance(raw.get("spec"), dict):
        raw["spec"] = rename_keys(reading, raw["spec"], (*path, "spec"), renames=_OLDER_SPEC)
    return raw


def _name_item(reading: DocumentReader, value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Name the item of an older collection whose loop does not."""
    fields = {("in" if key == "collection" else key): item for key, item in value.items()}
    fields = {**fields, "iterator": "item"}
    reading.report_problem(
        "W902",
        (*path, "collection"),
        "'collection' is an older form",
        of_key=True,
        replacement=write_flow({"in": fields["in"], "iterator": "item"}),
    )
    reading.record_move((*path, "collection"), (*path, "in"))
    return fields


def _rename_mode(value: Any) -> Any:
    return "parallel" if value == "async" else value
