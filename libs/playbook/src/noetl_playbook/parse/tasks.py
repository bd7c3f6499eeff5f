"""Reads the tasks of a step, from every shape that `tool` may have."""

from typing import Any, TypeGuard

from noetl_playbook.compat import placed_tasks
from noetl_playbook.compat.placed_tasks import is_derived_name
from noetl_playbook.compat.task import REPEAT_FORMS, refuse_structural, rewrite_task
from noetl_playbook.model import language_names, rate_limits, tools
from noetl_playbook.model.playbook import Assertion, RateLimit, Stream, Task
from noetl_playbook.sections import blocks, field_types
from noetl_playbook.sections.auth_fields import INLINE_DATABASE, check_auth
from noetl_playbook.sections.field_combinations import (
    FilledFields,
    check_field_combination,
    fill_fields,
)
from noetl_playbook.sections.policies import read_output, read_rules, read_set_block
from noetl_playbook.source.document_reader import DocumentReader, ReadTask, describe_value
from noetl_playbook.source.problems import Path, write_fragment

TASKS_MAX = 200

_SHARED = frozenset(
    {
        *("name", "kind", "input", "auth", "timeout", "set", "output", "output_select"),
        *("stream", "assert", "spec", "desc", "description"),
    }
)
# Shared keys that some kinds have as fields of their own.
_OWN_BEFORE_SHARED = frozenset({"description", "stream"})
_ON_OBJECTS = ("object_put", "object_get", "object_delete")
_NESTED_SHARED = frozenset({"kind", "name", "input", "auth", "timeout", "desc"})
_TIMEOUT = dict.fromkeys(("connect", "read", "total"), field_types.DURATION)


def read_tasks(
    reading: DocumentReader, step: dict[str, Any], path: Path, *, step_name: str
) -> tuple[Task, ...]:
    """Read a step's pipeline; always at least one task unless something is wrong."""
    task_places = placed_tasks.list_placed_tasks(reading, step, path, step_name=step_name)
    inputs = step.get("input")
    optional_tasks = (
        read_task(reading, task.raw, task.path, step_name=step_name, defaults=inputs)
        for task in task_places
    )
    tasks = tuple(task for task in optional_tasks if task is not None)
    _check_pipeline(reading, len(tasks), path)
    return tasks


def report_misplaced_fields(
    reading: DocumentReader, step: dict[str, Any], path: Path
) -> frozenset[str]:
    """Report task fields written beside a `tool` mapping or list."""
    if not isinstance(step.get("tool"), dict | list):
        return placed_tasks.BESIDE | ({"name"} if step.get("tool") == "workbook" else frozenset())
    for key in step:
        if key in tools.TASK_FIELDS or key in ("assert", "stream"):
            reading.report_problem(
                "E105",
                (*path, key),
                f"task field '{key}' stands beside 'tool'",
                hint="move it into the task",
                of_key=True,
            )
    return tools.TASK_FIELDS | {"assert", "stream"}


def read_task(
    reading: DocumentReader,
    value: Any,
    path: Path,
    *,
    step_name: str,
    default_name: str | None = None,
    defaults: Any = None,
) -> Task | None:
    """Read one task; `defaults` is its step's input, and its name may derive from the step's."""
    if not isinstance(value, dict):
        reading.report_wrong_type(path, "a task", value)
        return None
    task = rewrite_task(reading, value, path, defaults=defaults)
    if task is None:
        return None
    raw = refuse_structural(reading, task, path)
    kind = _read_kind(reading, raw, path)
    name = reading.read_text(raw.get("name", default_name), (*path, "name"))
    if not _is_valid_name(name, step_name=step_name, default=default_name):
        reading.report_problem(
            "E201", (*path, "name"), f"{describe_value(raw.get('name'))} is not a task name"
        )
        name = "unnamed"
    reading.add_task(ReadTask(path=path, name=name, kind=kind))
    spec = reading.read_mapping(raw.get("spec"), (*path, "spec")) or {}
    policy_path = (*path, "spec", "policy")
    policy = _read_policy(reading, spec, policy_path)
    auth = _read_auth(reading, raw, path)
    own_input = _read_input(reading, raw.get("input"), (*path, "input"))
    inputs = {**(defaults if isinstance(defaults, dict) else {}), **own_input}
    return Task(
        name=name,
        kind=kind,
        fields=_read_fields(reading, raw, spec, path, kind=kind, input_fields=inputs),
        input=own_input,
        auth=auth,
        timeout=_read_timeout(reading, raw, spec, path),
        set=read_set_block(reading, raw.get("set"), (*path, "set"), scope="task"),
        output=read_output(reading, raw, path, kind=kind),
        stream=_read_stream(reading, raw, path, kind=kind),
        assert_=_read_optional(reading, Assertion, raw.get("assert"), (*path, "assert")),
        rules=read_rules(reading, policy.get("rules"), (*policy_path, "rules")),
        on_unmatched=_read_on_unmatched(reading, policy, policy_path),
        rate_limit=_read_rate_limit(reading, spec, (*path, "spec", "rate_limit")),
    )


def _is_valid_name(name: Any, *, step_name: str, default: str | None) -> TypeGuard[str]:
    if not isinstance(name, str):
        return False
    return (
        name == default
        or language_names.is_task_name(name)
        or is_derived_name(name, step=step_name)
    )


def _read_optional(reading: DocumentReader, kind: type[Any], value: Any, path: Path) -> Any:
    return None if value is None else reading.read_struct(kind, value, path)


def _read_stream(
    reading: DocumentReader, raw: dict[str, Any], path: Path, *, kind: str
) -> Stream | None:
    table = tools.KINDS.get(kind)
    if table is not None and "stream" in table.fields:
        return None
    stream: Stream | None = _read_optional(reading, Stream, raw.get("stream"), (*path, "stream"))
    return stream


def _read_kind(reading: DocumentReader, raw: dict[str, Any], path: Path) -> str:
    """Name the kind; what is no kind is read on, so that the rest is judged too."""
    kind = raw.get("kind")
    kind_path = (*path, "kind")
    if not isinstance(kind, str):
        reading.report_problem(
            "E104", path, "a task needs 'kind'", hint="kind: http, postgres, python, …"
        )
        return ""
    if kind in tools.KIND_ALIASES:
        canonical = tools.KIND_ALIASES[kind]
        reading.report_problem(
            "W902",
            kind_path,
            f"kind '{kind}' is an older name of '{canonical}'",
            replacement=f"kind: {canonical}",
        )
        return canonical
    if kind in tools.KINDS:
        return kind
    if kind in tools.RESERVED_KINDS:
        reading.report_problem(
            "E402",
            kind_path,
            f"kind '{kind}' is reserved and not available;"
            " call it with kind http, python or external",
        )
        return kind
    reading.report_problem(
        "E401",
        kind_path,
        f"unknown tool kind '{kind}'",
        hint=reading.suggest_word(kind, tools.KINDS),
    )
    return kind


def _read_fields(
    reading: DocumentReader,
    raw: dict[str, Any],
    spec: dict[str, Any],
    path: Path,
    *,
    kind: str,
    input_fields: dict[str, Any],
) -> dict[str, Any]:
    """Gather the kind's own fields; those under `spec` move up, the task level wins."""
    table = tools.KINDS.get(kind)
    task_fields: dict[str, Any] = {}
    written: dict[str, Path] = {}
    known_fields = table.known_fields if table is not None else frozenset[str]()
    shared = _SHARED - (known_fields & _OWN_BEFORE_SHARED)
    for origin, section in ((path, raw), ((*path, "spec"), spec)):
        ignored = shared if section is raw else tools.SPEC_KEYS
        for key, item in section.items():
            inner_path = (*origin, key)
            if key in ignored or (section is raw and key in INLINE_DATABASE):
                continue
            if table is not None and key not in table.known_fields:
                shared_keys = _SHARED | set(REPEAT_FORMS) if section is raw else tools.SPEC_KEYS
                known_keys = table.known_fields | shared_keys
                reading.report_unknown(inner_path, known_keys, noun=f"field of kind {kind}")
                continue
            if section is spec and key not in tools.SPEC_FIELDS:
                reading.report_problem(
                    "W902",
                    inner_path,
                    f"'{key}' under spec is an older form",
                    of_key=True,
                    replacement=write_fragment(key, item),
                )
            canonical = table.aliases.get(key, key) if table is not None else key
            if canonical in task_fields and section is raw:
                reading.report_problem(
                    "E403",
                    inner_path,
                    f"'{key}' and another spelling of '{canonical}' are both written",
                    of_key=True,
                )
            elif table is not None and canonical not in task_fields:
                _check_field(reading, kind, canonical, item, inner_path)
            if item is not None:
                written.setdefault(canonical, inner_path)
            task_fields.setdefault(
                canonical, field_types.spell_field(reading, kind, canonical, item, inner_path)
            )
            reading.add_templates(item, inner_path)
    if table is not None:
        task_fields |= _find_object_name(reading, raw, path, kind=kind, input_fields=input_fields)
        fields = fill_fields(table, task_fields, input_fields, path)
        _check_input_fields(reading, fields, kind)
        check_field_combination(reading, table, fields, written=written)
        _check_nested_tasks(reading, task_fields, path)
    return task_fields


def _find_object_name(
    reading: DocumentReader,
    raw: dict[str, Any],
    path: Path,
    *,
    kind: str,
    input_fields: dict[str, Any],
) -> dict[str, str]:
    """Take the name of an object from its task, unless a caller of the task has named it."""
    if kind != "nats" or raw.get("operation") not in _ON_OBJECTS or "name" in input_fields:
        return {}
    places = [reading.find_origin((*path, key))[:-1] for key in ("name", "operation")]
    is_own = path[0] == "workflow" and places[0] == places[1]
    is_written = reading.find_written((*path, "name")) is not None
    return {"name": str(raw["name"])} if is_own and is_written else {}


def _check_input_fields(reading: DocumentReader, fields: FilledFields, kind: str) -> None:
    """Check inputs that fill fields as the fields that they fill."""
    for name, item in fields.input_fields.items():
        if fields.own.get(name) is None:
            _check_field(reading, kind, name, item, fields.build_field_path(name))


def _check_field(reading: DocumentReader, kind: str, name: str, value: Any, path: Path) -> None:
    field_types.check_field(reading, kind, name, value, path)
    blocks.check_block(reading, kind, name, value, path)


def _check_nested_tasks(reading: DocumentReader, task_fields: dict[str, Any], path: Path) -> None:
    """Check the tasks inside a task, which `external` has: their kinds and the fields of these."""
    for which in tools.NESTED_FIELDS:
        inside, inner_path = task_fields.get(which), (*path, which)
        if not isinstance(inside, dict):
            continue
        kind = inside.get("kind")
        if kind not in tools.NESTED_KINDS:
            kinds = ", ".join(tools.NESTED_KINDS)
            reading.report_problem("E403", inner_path, f"'{which}' is a task of kind {kinds}")
            continue
        table = tools.KINDS[kind]
        for key in inside:
            if key not in table.known_fields | _NESTED_SHARED:
                reading.report_unknown(
                    (*inner_path, key),
                    table.known_fields | _NESTED_SHARED,
                    noun=f"field of {which}",
                )
        renamed = {table.aliases.get(str(key), str(key)): item for key, item in inside.items()}
        nested_fields = {key: item for key, item in renamed.items() if key not in _NESTED_SHARED}
        for key, item in nested_fields.items():
            _check_field(reading, kind, key, item, (*inner_path, key))
        check_auth(reading, inside.get("auth"), (*inner_path, "auth"))
        fields = fill_fields(table, nested_fields, inside.get("input"), inner_path)
        _check_input_fields(reading, fields, kind)
        written = {
            key: (*inner_path, key) for key, item in nested_fields.items() if item is not None
        }
        check_field_combination(reading, table, fields, written=written)


def _read_input(reading: DocumentReader, value: Any, path: Path) -> dict[str, Any]:
    mapping = reading.read_mapping(value, path) or {}
    reading.add_templates(mapping, path)
    return mapping


def _read_auth(reading: DocumentReader, raw: dict[str, Any], path: Path) -> Any:
    inline = {key: raw[key] for key in INLINE_DATABASE if key in raw}
    if inline:
        reading.report_problem(
            "W904",
            (*path, next(iter(inline))),
            "database settings on a task are an older form",
            of_key=True,
            replacement="auth: <credential name>",
        )
        reading.add_templates(inline, path)
    if inline and raw.get("auth") is None:
        return inline
    auth = raw.get("auth")
    check_auth(reading, auth, (*path, "auth"))
    if auth is not None and not isinstance(auth, str | dict):
        return None
    reading.add_templates(auth, (*path, "auth"))
    return auth


def _read_timeout(
    reading: DocumentReader, raw: dict[str, Any], spec: dict[str, Any], path: Path
) -> Any:
    if raw.get("timeout") is None and spec.get("timeout") is not None:
        reading.record_move((*path, "spec", "timeout"), (*path, "timeout"))
        raw = {"timeout": spec["timeout"]}
    value = raw.get("timeout")
    if value is None:
        return None
    if isinstance(value, dict):
        field_types.check_mapping_keys(
            reading, _TIMEOUT, value, (*path, "timeout"), about="timeout"
        )
    fields = reading.read_fields(Task, {"timeout": value}, path)
    return fields.get("timeout")


def _read_policy(reading: DocumentReader, spec: dict[str, Any], path: Path) -> dict[str, Any]:
    value = spec.get("policy")
    policy = reading.read_mapping(value, path) or {}
    for key in policy:
        if key not in ("rules", "on_unmatched"):
            reading.report_unknown((*path, key), ("rules", "on_unmatched"))
    return policy


def _read_on_unmatched(reading: DocumentReader, policy: dict[str, Any], path: Path) -> Any:
    value = policy.get("on_unmatched")
    if value is None:
        return "default"
    fields = reading.read_fields(Task, {"on_unmatched": value}, path)
    return fields.get("on_unmatched", "default")


def _read_rate_limit(reading: DocumentReader, spec: dict[str, Any], path: Path) -> RateLimit | None:
    """Read how fast a task's calls may go; numbers that are written out are checked here."""
    limit: RateLimit | None = _read_optional(reading, RateLimit, spec.get("rate_limit"), path)
    if limit is None:
        return None
    rate, per, burst = limit.rate, limit.per, limit.burst
    if isinstance(rate, str) or isinstance(per, str) or isinstance(burst, str):
        return limit
    if (
        fault := rate_limits.find_rate_fault(key=limit.key, rate=rate, per_s=per, burst=burst)
    ) is not None:
        reading.report_problem("E104", path, f"in a rate limit, {fault}")
    return limit


def _check_pipeline(reading: DocumentReader, count: int, path: Path) -> None:
    """Check what tasks say about each other: they are few enough, and their names are unique."""
    if count > TASKS_MAX:
        reading.report_problem("E601", (*path, "tool"), f"a step has at most {TASKS_MAX} tasks")
    names: set[str] = set()
    for task in reading.list_tasks(path):
        if task.name in names:
            reading.report_problem(
                "E201", (*task.path, "name"), f"two tasks are named '{task.name}'"
            )
        names.add(task.name)
