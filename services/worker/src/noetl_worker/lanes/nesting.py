"""Tasks inside an `external` task: what it submits, and what calls that off."""

from noetl_playbook.model import Task
from noetl_playbook.tools import KINDS, NESTED_KINDS
from noetl_worker.domain.failures import ToolFailure, failure

_SHARED = frozenset({"kind", "name", "input", "auth", "timeout", "desc"})


def nested(task: Task, which: str) -> Task | None:
    """Read a task inside an `external` one; raises `ToolFailure`."""
    raw = task.fields.get(which)
    if raw is None:
        return None
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if kind not in NESTED_KINDS:
        text = f"task '{task.name}', field '{which}': a task of kind {', '.join(NESTED_KINDS)}"
        raise ToolFailure(failure("validation", f"{text} is wanted"))
    aliases = KINDS[kind].aliases
    return Task(
        name=f"{task.name}.{which}",
        kind=kind,
        fields={aliases.get(key, key): one for key, one in raw.items() if key not in _SHARED},
        input=raw.get("input") or {},
        auth=raw.get("auth"),
        timeout=raw.get("timeout"),
    )
