"""Reads the tasks of a step, from every shape that `tool` may have."""

from typing import Any

from noetl_playbook import names, spelling, tools
from noetl_playbook.model import Assertion, Stream, Task
from noetl_playbook.older import rename_task_keys
from noetl_playbook.policies import read_output, read_rules, read_set
from noetl_playbook.problems import Path, Severity
from noetl_playbook.reading import Reading, shown

TASKS_MAX = 200

_SHARED = frozenset(
    {
        *("name", "kind", "input", "auth", "timeout", "set", "output", "output_select"),
        *("stream", "assert", "spec", "desc", "description"),
    }
)
_NESTED_SHARED = frozenset({"kind", "name", "input", "auth", "timeout", "desc"})
_TIMEOUT_KEYS = frozenset({"connect", "read", "total"})
_INLINE_DATABASE = ("db_host", "db_port", "db_user", "db_password", "db_name", "dsn")

Placed = tuple[Any, Path]


def read_tasks(
    reading: Reading, step: dict[str, Any], path: Path, *, step_name: str
) -> tuple[Task, ...]:
    """Read a step's pipeline; always at least one task unless something is wrong."""
    tool = step.get("tool")
    tool_path = (*path, "tool")
    if isinstance(tool, list):
        read = _read_list(reading, tool, tool_path)
    elif isinstance(tool, str):
        read = _read_beside(reading, step, path, step_name=step_name)
    elif isinstance(tool, dict) and "kind" not in tool and _is_labelled(tool):
        reading.report("W902", tool_path, "tasks by name are an older form of a list")
        read = [
            read_task(reading, {"name": label, **task}, (*tool_path, label))
            for label, task in tool.items()
        ]
    elif tool is None:
        read = _read_absent(reading, step, path, step_name=step_name)
    else:
        read = [read_task(reading, tool, tool_path, default_name=f"{step_name}_task")]
    tasks = tuple(task for task in read if task is not None)
    _check_pipeline(reading, tasks, tool_path)
    return tasks


def _is_labelled(tool: dict[str, Any]) -> bool:
    return bool(tool) and all(
        isinstance(task, dict) and ("kind" in task or "tool" in task) for task in tool.values()
    )


def _read_list(reading: Reading, tool: list[Any], path: Path) -> list[Task | None]:
    if not tool:
        reading.report("E104", path, "the list of tasks is empty", hint="use kind: noop")
    read: list[Task | None] = []
    for index, item in enumerate(tool):
        here = (*path, index)
        if isinstance(item, dict) and len(item) == 1 and _is_labelled(item):
            ((label, task),) = item.items()
            reading.report("W902", here, f"the label '{label}' is an older form of 'name'")
            read.append(read_task(reading, {"name": label, **task}, (*here, label)))
        else:
            read.append(read_task(reading, item, here, default_name=f"task_{index}"))
    return read


def _read_beside(
    reading: Reading, step: dict[str, Any], path: Path, *, step_name: str
) -> list[Task | None]:
    kind = str(step["tool"])
    reading.report(
        "W902",
        (*path, "tool"),
        "a tool's fields beside it on the step are an older form",
        replacement=f"tool: {{kind: {kind}, …}}",
    )
    own = {"assert", "stream", "auth", "credential", *_INLINE_DATABASE} | tools.TASK_FIELDS
    taken = {key: item for key, item in step.items() if key in own}
    reading.move((*path, "tool"), (*path, "kind"))
    return [read_task(reading, {"kind": kind, **taken}, path, default_name=f"{step_name}_task")]


def _read_absent(
    reading: Reading, step: dict[str, Any], path: Path, *, step_name: str
) -> list[Task | None]:
    beside = [key for key in step if key in tools.TASK_FIELDS]
    if beside:
        reading.report(
            "E104",
            (*path, beside[0]),
            f"'{beside[0]}' stands on a step that has no 'tool'",
            hint="write tool: {kind: …} with the fields in it",
            of_key=True,
        )
        return []
    reading.report(
        "E106",
        path,
        "the step has neither 'tool' nor task fields",
        hint="use kind: noop",
        replacement="tool: {kind: noop}",
    )
    return [Task(name=f"{step_name}_task", kind="noop")]


def misplaced_fields(reading: Reading, step: dict[str, Any], path: Path) -> frozenset[str]:
    """Report task fields written beside a `tool` mapping or list."""
    if not isinstance(step.get("tool"), dict | list):
        return tools.TASK_FIELDS | {"assert", "stream", *_INLINE_DATABASE}
    for key in step:
        if key in tools.TASK_FIELDS or key in ("assert", "stream"):
            reading.report(
                "E105",
                (*path, key),
                f"task field '{key}' stands beside 'tool'",
                hint="move it into the task",
                of_key=True,
            )
    return tools.TASK_FIELDS | {"assert", "stream"}


def read_task(
    reading: Reading, value: Any, path: Path, *, default_name: str | None = None
) -> Task | None:
    """Read one task."""
    if not isinstance(value, dict):
        reading.wrong(path, "a task", value)
        return None
    raw = rename_task_keys(reading, value, path)
    kind = _read_kind(reading, raw, path)
    if kind is None:
        return None
    name = raw.get("name", default_name)
    if not isinstance(name, str) or (name != default_name and not names.is_task_name(name)):
        reading.report("E201", (*path, "name"), f"{shown(name)} is not a task name")
        name = "unnamed"
    spec = reading.mapping(raw.get("spec"), (*path, "spec")) or {}
    policy_path = (*path, "spec", "policy")
    policy = _read_policy(reading, spec, policy_path)
    auth = _read_auth(reading, raw, path)
    return Task(
        name=name,
        kind=kind,
        fields=_read_fields(reading, raw, spec, path, kind=kind),
        input=_read_input(reading, raw.get("input"), (*path, "input")),
        auth=auth,
        timeout=_read_timeout(reading, raw, spec, path),
        set=read_set(reading, raw.get("set"), (*path, "set"), scope="task"),
        output=read_output(reading, raw, path),
        stream=_optional(reading, Stream, raw.get("stream"), (*path, "stream")),
        assert_=_optional(reading, Assertion, raw.get("assert"), (*path, "assert")),
        rules=read_rules(reading, policy.get("rules"), (*policy_path, "rules")),
        on_unmatched=_read_on_unmatched(reading, policy, policy_path),
    )


def _optional(reading: Reading, kind: type[Any], value: Any, path: Path) -> Any:
    return None if value is None else reading.struct(kind, value, path)


def _read_kind(reading: Reading, raw: dict[str, Any], path: Path) -> str | None:
    kind = raw.get("kind")
    kind_path = (*path, "kind")
    if not isinstance(kind, str):
        reading.report("E104", path, "a task needs 'kind'", hint="kind: http, postgres, python, …")
        return None
    if kind in tools.KIND_ALIASES:
        canonical = tools.KIND_ALIASES[kind]
        reading.report(
            "W902",
            kind_path,
            f"kind '{kind}' is an older name of '{canonical}'",
            replacement=f"kind: {canonical}",
        )
        return canonical
    if kind in tools.KINDS:
        return kind
    if kind in tools.RESERVED_KINDS:
        reading.report(
            "E402",
            kind_path,
            f"kind '{kind}' is reserved and not available",
            hint="call it with kind http, python or external",
        )
        return kind
    reading.report(
        "E401", kind_path, f"unknown tool kind '{kind}'", hint=spelling.hint(kind, tools.KINDS)
    )
    return None


def _read_fields(
    reading: Reading, raw: dict[str, Any], spec: dict[str, Any], path: Path, *, kind: str
) -> dict[str, Any]:
    """Gather the kind's own fields; those under `spec` move up, the task level wins."""
    table = tools.KINDS.get(kind)
    found: dict[str, Any] = {}
    for origin, section in ((path, raw), ((*path, "spec"), spec)):
        own = table.known if table is not None else frozenset[str]()
        shared = _SHARED - (own & {"description"})
        ignored = shared if section is raw else frozenset({"timeout", "policy"})
        for key, item in section.items():
            here = (*origin, key)
            if key in ignored or (section is raw and key in _INLINE_DATABASE):
                continue
            if table is not None and key not in table.known:
                reading.unknown(here, table.known | _SHARED, what=f"field of kind {kind}")
                continue
            if section is spec:
                reading.report(
                    "W902",
                    here,
                    f"'{key}' under spec is an older form",
                    of_key=True,
                    replacement=f"{key}: … on the task",
                )
            canonical = table.aliases.get(key, key) if table is not None else key
            if canonical in found and section is raw:
                reading.report(
                    "E403",
                    here,
                    f"'{key}' and another spelling of '{canonical}' are both written",
                    of_key=True,
                )
            found.setdefault(canonical, item)
            reading.template(item, here)
    if table is not None:
        _check_combination(reading, table, found, path)
    if kind == "external":
        _check_nested(reading, found, path)
    return found


def _check_nested(reading: Reading, found: dict[str, Any], path: Path) -> None:
    """Check the tasks inside an `external` one: their kinds and the fields of these."""
    for which in tools.NESTED_FIELDS:
        inside, here = found.get(which), (*path, which)
        if inside is None:
            continue
        kind = inside.get("kind") if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or kind not in tools.NESTED_KINDS:
            kinds = ", ".join(tools.NESTED_KINDS)
            reading.report("E403", here, f"'{which}' is a task of kind {kinds}")
            continue
        table = tools.KINDS[kind]
        for key in inside:
            if key not in table.known | _NESTED_SHARED:
                reading.unknown(
                    (*here, key), table.known | _NESTED_SHARED, what=f"field of {which}"
                )
        renamed = {table.aliases.get(str(key), str(key)): item for key, item in inside.items()}
        _check_combination(reading, table, renamed, here)


def _check_combination(
    reading: Reading, table: tools.Kind, found: dict[str, Any], path: Path
) -> None:
    severity = Severity.WARNING if path[:1] == ("workbook",) else None
    for name in table.required:
        if found.get(name) is None:
            reading.report("E403", path, f"kind {table.name} needs '{name}'", severity=severity)
    sources = [name for name in table.source if found.get(name) is not None]
    choices = " or ".join(f"'{name}'" for name in table.source)
    if table.source and not sources:
        reading.report("E403", path, f"kind {table.name} needs {choices}", severity=severity)
    elif len(sources) > 1:
        reading.report("E403", path, f"kind {table.name} takes one of {choices}")


def _read_input(reading: Reading, value: Any, path: Path) -> dict[str, Any]:
    found = reading.mapping(value, path) or {}
    reading.template(found, path)
    return found


def _read_auth(reading: Reading, raw: dict[str, Any], path: Path) -> Any:
    inline = {key: raw[key] for key in _INLINE_DATABASE if key in raw}
    if inline and raw.get("auth") is None:
        reading.report(
            "W904",
            (*path, next(iter(inline))),
            "database settings on a task are an older form",
            of_key=True,
            replacement="auth: <credential name>",
        )
        reading.template(inline, path)
        return inline
    auth = raw.get("auth")
    if auth is not None and not isinstance(auth, str | dict):
        reading.wrong((*path, "auth"), "a credential name or a mapping", auth)
        return None
    reading.template(auth, (*path, "auth"))
    return auth


def _read_timeout(reading: Reading, raw: dict[str, Any], spec: dict[str, Any], path: Path) -> Any:
    if raw.get("timeout") is None and spec.get("timeout") is not None:
        reading.move((*path, "spec", "timeout"), (*path, "timeout"))
        raw = {"timeout": spec["timeout"]}
    value = raw.get("timeout")
    if value is None:
        return None
    if isinstance(value, dict):
        for key in value:
            if key not in _TIMEOUT_KEYS:
                reading.unknown((*path, "timeout", key), _TIMEOUT_KEYS)
    found = reading.fields(Task, {"timeout": value}, path)
    return found.get("timeout")


def _read_policy(reading: Reading, spec: dict[str, Any], path: Path) -> dict[str, Any]:
    value = spec.get("policy")
    if isinstance(value, list):
        reading.report(
            "W902", path, "a policy as a list is an older form", replacement="policy: {rules: […]}"
        )
        reading.move(path, (*path, "rules"))
        return {"rules": value}
    policy = reading.mapping(value, path) or {}
    for key in policy:
        if key not in ("rules", "on_unmatched"):
            reading.unknown((*path, key), ("rules", "on_unmatched"))
    return policy


def _read_on_unmatched(reading: Reading, policy: dict[str, Any], path: Path) -> Any:
    value = policy.get("on_unmatched")
    if value is None:
        return "default"
    found = reading.fields(Task, {"on_unmatched": value}, path)
    return found.get("on_unmatched", "default")


def _check_pipeline(reading: Reading, tasks: tuple[Task, ...], path: Path) -> None:
    """Check what tasks say about each other: names are unique, jumps have a target."""
    if len(tasks) > TASKS_MAX:
        reading.report("E601", path, f"a step has at most {TASKS_MAX} tasks")
    seen: set[str] = set()
    for task in tasks:
        if task.name in seen:
            reading.report("E201", path, f"two tasks are named '{task.name}'")
        seen.add(task.name)
    for index, task in enumerate(tasks):
        for rule in task.rules:
            target = rule.then.to
            if rule.then.do != "jump" or target is None:
                continue
            rule_path = _task_path(path, index, len(tasks), reading)
            if target in ("previous", "prev"):
                if index == 0:
                    reading.report("E204", rule_path, "the first task has no previous one")
            elif target not in seen:
                reading.report(
                    "E204",
                    rule_path,
                    f"jump target '{target}' is not a task here",
                    hint=spelling.hint(target, seen),
                )


def _task_path(path: Path, index: int, count: int, reading: Reading) -> Path:
    indexed = (*path, index)
    return indexed if count > 1 or indexed in reading.document.values else path
