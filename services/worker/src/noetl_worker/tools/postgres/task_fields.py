"""The fields of a postgres task besides its SQL: what it wants of its session and its pool."""

import re
from base64 import b64decode
from typing import Any

from msgspec import Struct

from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.sql import sql_statements
from noetl_worker.sql.lexer import Dialect
from noetl_worker.sql.sql_statements import Statement
from noetl_worker.tools.calls.call import Call

_POOL_FIELDS = frozenset({"name", "min_size", "max_size", "timeout", "max_waiting"})


class PoolHints(Struct, frozen=True, kw_only=True):
    """What a task wants of the pool: one of its own by name or size, and how long it waits."""

    name: str = ""
    size_max: int | None = None
    wait_s: float | None = None
    waiting_max: int | None = None


_NO_HINTS = PoolHints()


def parse_pool_hints(fields: dict[str, Any]) -> PoolHints:
    """Read the field `pool`; raises `ToolFailure`.

    `min_size` is accepted: connections are opened when they are first needed, however many.
    """
    pool = fields.get("pool")
    if pool is None:
        return _NO_HINTS
    if not isinstance(pool, dict) or not pool.keys() <= _POOL_FIELDS:
        raise _build_invalid_failure(
            f"field 'pool' must be a mapping of {', '.join(sorted(_POOL_FIELDS))}"
        )
    _parse_count(pool, "min_size", minimum=0)
    return PoolHints(
        name=str(pool.get("name") or ""),
        size_max=_parse_count(pool, "max_size", minimum=1),
        wait_s=_parse_seconds(pool.get("timeout"), "pool.timeout"),
        waiting_max=_parse_count(pool, "max_waiting", minimum=0),
    )


def parse_statement_timeout_s(fields: dict[str, Any]) -> float | None:
    """Read the field `statement_timeout`; raises `ToolFailure`."""
    return _parse_seconds(fields.get("statement_timeout"), "statement_timeout")


def is_autocommit(fields: dict[str, Any]) -> bool:
    """Read the field `autocommit`; raises `ToolFailure`."""
    autocommit = fields.get("autocommit")
    is_on = False if autocommit is None else coercion.coerce_boolean(autocommit)
    if is_on is None:
        raise _build_invalid_failure(
            f"field 'autocommit' must be true or false, not {autocommit!r}"
        )
    return is_on


def check_params(params: Any) -> None:
    """Refuse params that are no list and no mapping; raises `ToolFailure`."""
    if params is not None and not isinstance(params, list | dict):
        raise _build_invalid_failure("field 'params' must be a list or a mapping")


def _parse_count(pool_fields: dict[str, Any], name: str, *, minimum: int) -> int | None:
    value = pool_fields.get(name)
    if value is None:
        return None
    count = coercion.coerce_integer(value)
    if count is None or count < minimum:
        raise _build_invalid_failure(
            f"field 'pool.{name}' must be a whole number of at least {minimum}"
        )
    return count


def _parse_seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    duration_s = coercion.coerce_duration_s(value)
    if duration_s is None or duration_s <= 0:
        raise _build_invalid_failure(f"field '{name}': {value!r} is not a duration above 0")
    return duration_s


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="postgres"))


# Errors of the server and of the client's conversions call a parameter so.
_PARAMETER = re.compile(r"\bparameter \$(\d+)")


def parse_statements(call: Call, dialect: Dialect = "postgres") -> tuple[Statement, ...]:
    """Cut a task's SQL into statements; raises `ToolFailure`."""
    query, params = call.fields.get("query"), call.fields.get("params")
    encoded = call.fields.get("query_b64")
    if encoded is not None:
        query = _decode_query(encoded)
    check_params(params)
    style = sql_statements.get_placeholder_style(params)
    texts: list[Any] = query if isinstance(query, list) else [query]
    if any(not isinstance(text, str) for text in texts):
        raise ToolFailure(build_error("validation", "field 'query' must be SQL text"))
    statements = tuple(
        statement
        for text in texts
        for statement in sql_statements.cut_statements(text, style, dialect)
    )
    if not statements:
        raise ToolFailure(build_error("validation", "field 'query' holds no statement"))
    if any(item.is_client_copy for item in statements):
        text = "COPY with STDIN or STDOUT has no other end here: move rows with kind transfer"
        raise ToolFailure(build_error("validation", text, source="postgres"))
    return statements


def name_parameters(message: str, statement: Statement) -> str:
    """Name the parameters in an error as the task does: `:id`, where the server counts `$1`."""

    def name_slot(match: re.Match[str]) -> str:
        place = int(match[1]) - 1
        if not 0 <= place < len(statement.slots):
            return match[0]
        slot = statement.slots[place]
        return f"parameter ${slot + 1}" if isinstance(slot, int) else f"parameter :{slot}"

    return _PARAMETER.sub(name_slot, message)


def _decode_query(encoded: Any) -> str:
    try:
        return b64decode(str(encoded), validate=True).decode()
    except ValueError as problem:
        text = f"field 'query_b64' is not SQL text in base64: {problem}"
        raise ToolFailure(build_error("validation", text, source="postgres")) from problem
