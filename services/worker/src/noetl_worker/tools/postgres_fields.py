"""The fields of a postgres task besides its SQL: what it wants of its session and its pool."""

from typing import Any

from msgspec import Struct

from noetl_playbook import coercion
from noetl_worker.domain.failures import ToolFailure, failure

_POOL_FIELDS = frozenset({"name", "min_size", "max_size", "timeout", "max_waiting"})


class Hints(Struct, frozen=True, kw_only=True):
    """What a task wants of the pool: one of its own by name or size, and how long it waits."""

    name: str = ""
    size_max: int | None = None
    wait_s: float | None = None
    waiting_max: int | None = None


_NO_HINTS = Hints()


def hints_of(fields: dict[str, Any]) -> Hints:
    """Read the field `pool`; raises `ToolFailure`.

    `min_size` is accepted: connections are opened when they are first needed, however many.
    """
    given = fields.get("pool")
    if given is None:
        return _NO_HINTS
    if not isinstance(given, dict) or not given.keys() <= _POOL_FIELDS:
        raise _invalid(f"field 'pool' must be a mapping of {', '.join(sorted(_POOL_FIELDS))}")
    _count(given, "min_size", least=0)
    return Hints(
        name=str(given.get("name") or ""),
        size_max=_count(given, "max_size", least=1),
        wait_s=_seconds(given.get("timeout"), "pool.timeout"),
        waiting_max=_count(given, "max_waiting", least=0),
    )


def statement_timeout_s(fields: dict[str, Any]) -> float | None:
    """Read the field `statement_timeout`; raises `ToolFailure`."""
    return _seconds(fields.get("statement_timeout"), "statement_timeout")


def is_autocommit(fields: dict[str, Any]) -> bool:
    """Read the field `autocommit`; raises `ToolFailure`."""
    given = fields.get("autocommit")
    found = False if given is None else coercion.boolean(given)
    if found is None:
        raise _invalid(f"field 'autocommit' must be true or false, not {given!r}")
    return found


def check_params(params: Any) -> None:
    """Refuse params that are no list and no mapping; raises `ToolFailure`."""
    if params is not None and not isinstance(params, list | dict):
        raise _invalid("field 'params' must be a list or a mapping")


def _count(given: dict[str, Any], name: str, *, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    found = coercion.integer(value)
    if found is None or found < least:
        raise _invalid(f"field 'pool.{name}' must be a whole number of at least {least}")
    return found


def _seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    found = coercion.duration_s(value)
    if found is None or found <= 0:
        raise _invalid(f"field '{name}': {value!r} is not a duration above 0")
    return found


def _invalid(text: str) -> ToolFailure:
    return ToolFailure(failure("validation", text, source="postgres"))
