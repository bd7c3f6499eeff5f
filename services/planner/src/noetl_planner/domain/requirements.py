"""What a playbook wants of the place that runs it (language, 2.3)."""

from collections.abc import Iterable, Sequence

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_planner.domain import pools
from noetl_planner.domain.draft import Draft
from noetl_playbook import tools

EXECUTOR = "(executor)"


def missing(draft: Draft, pool: str | None) -> ErrorObject | None:
    """Return the error of an execution that needs tools or pools which are not here, or None."""
    required = draft.program.playbook.executor.requires.tools
    program = draft.program
    executor = codec.builtins(program.playbook.executor)
    steps = [program.definition(name) for name in program.order]
    wanted = pools.wishes({"executor": executor, "workflow": steps}, pool)
    return error_of(required, enabled=draft.limits.tools) or pools.fault(wanted, draft.limits.pools)


def error_of(required: Sequence[str], *, enabled: Iterable[str] = ()) -> ErrorObject | None:
    """Name the tool kinds that are required and not enabled; no `enabled` means all there are."""
    kinds = frozenset(enabled)
    absent = [
        kind
        for kind in required
        if not tools.is_available(tools.KIND_ALIASES.get(kind, kind))
        or (kinds and tools.KIND_ALIASES.get(kind, kind) not in kinds)
    ]
    if not absent:
        return None
    return ErrorObject(
        kind="requirement_missing",
        code="REQUIREMENT_MISSING",
        step=EXECUTOR,
        message=f"executor.requires.tools: {', '.join(absent)} "
        f"{'is' if len(absent) == 1 else 'are'} not enabled here: "
        "enable the kind on the planner and its workers, or run it elsewhere",
    )
