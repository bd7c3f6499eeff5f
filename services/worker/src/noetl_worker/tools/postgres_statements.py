"""The statements of a task of SQL."""

import re
from base64 import b64decode
from typing import Any

from noetl_worker.domain import sql_text
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sql_text import Statement
from noetl_worker.domain.sql_tokens import Dialect
from noetl_worker.tools.call import Call
from noetl_worker.tools.postgres_fields import check_params

# Errors of the server and of the client's conversions call a parameter so.
_PARAMETER = re.compile(r"\bparameter \$(\d+)")


def parse_statements(call: Call, dialect: Dialect = "postgres") -> tuple[Statement, ...]:
    """Cut a task's SQL into statements; raises `ToolFailure`."""
    query, params = call.fields.get("query"), call.fields.get("params")
    encoded = call.fields.get("query_b64")
    if encoded is not None:
        query = _decoded(encoded)
    check_params(params)
    style = sql_text.style_of(params)
    texts: list[Any] = query if isinstance(query, list) else [query]
    if any(not isinstance(text, str) for text in texts):
        raise ToolFailure(failure("validation", "field 'query' must be SQL text"))
    found = tuple(one for text in texts for one in sql_text.statements(text, style, dialect))
    if not found:
        raise ToolFailure(failure("validation", "field 'query' holds no statement"))
    if any(one.is_client_copy for one in found):
        text = "COPY with STDIN or STDOUT has no other end here: move rows with kind transfer"
        raise ToolFailure(failure("validation", text, source="postgres"))
    return found


def name_parameters(message: str, statement: Statement) -> str:
    """Name the parameters in an error as the task does: `:id`, where the server counts `$1`."""

    def name_slot(found: re.Match[str]) -> str:
        place = int(found[1]) - 1
        if not 0 <= place < len(statement.slots):
            return found[0]
        slot = statement.slots[place]
        return f"parameter ${slot + 1}" if isinstance(slot, int) else f"parameter :{slot}"

    return _PARAMETER.sub(name_slot, message)


def _decoded(encoded: Any) -> str:
    try:
        return b64decode(str(encoded), validate=True).decode()
    except ValueError as problem:
        text = f"field 'query_b64' is not SQL text in base64: {problem}"
        raise ToolFailure(failure("validation", text, source="postgres")) from problem
