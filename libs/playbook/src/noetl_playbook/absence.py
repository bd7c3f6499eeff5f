"""Which missing values are absent, and which are mistakes.

The language's own records have fields without a value at times: `output.error` of a success. They
are absent. So is everything in a playbook whose `undefined` is `lenient`. All else that is not
there is a mistake, and a test of it fails.
"""

from collections.abc import Sequence
from typing import Any

from noetl_playbook.lookup import Lookup, Record
from noetl_playbook.undefined import Absent, Undefined

ERROR = "error"
DETAILS = "details"
# The fields of an error object; an error has those that apply (language, section 14).
ERROR_FIELDS = frozenset(
    {
        *("kind", "message", "retryable", "code", "status", "retry_after", "pg_code"),
        *("exception_type", "source", "step", "task", "attempt", DETAILS),
        *("status_code", "http_status"),
    }
)
HTTP_FIELDS = frozenset({"status", "headers"})
PG_FIELDS = frozenset({"code", "sqlstate", "constraint", "table"})
PY_FIELDS = frozenset({"exception", "traceback"})
# What an envelope's records hold; any other field of them is a mistake, also where they are absent.
_BELOW = {ERROR: ERROR_FIELDS, "http": HTTP_FIELDS, "pg": PG_FIELDS, "py": PY_FIELDS}
# Names of the language that have no value at times: of an entry step, of a success.
OPTIONAL_NAMES = frozenset(
    {
        *("output", "outcome", "result", "response", ERROR, "event", "input", "_prev"),
        *("payload", "parent_execution_id"),
    }
)


def missing_name(scope: Any, name: str, keys: Sequence[Any] = ()) -> Undefined:
    """Make what stands for a name that the scope does not have; `keys` are looked up below it."""
    is_absent = is_lenient(scope) or (name in OPTIONAL_NAMES and _is_known(name, keys))
    return (Absent if is_absent else Undefined)(name=name, owner=scope)


def missing_member(
    scope: Any, owner: Any, keys: Sequence[Any], *, name: str, missing: str | None = None
) -> Undefined:
    """Make what stands for `owner.key`; `keys` begin with the one that is missing."""
    is_absent = is_lenient(scope) or can_lack(owner, keys)
    return (Absent if is_absent else Undefined)(name=name, owner=owner, missing=missing)


def missing_branch(scope: Any, hint: str) -> Undefined:
    """Make what an inline `if` without an else gives when it is false."""
    return (Absent if is_lenient(scope) else Undefined)(hint)


def is_lenient(scope: Any) -> bool:
    """Tell whether whatever is missing is absent, by what the playbook says of undefined."""
    return getattr(scope, "is_lenient", False)


def can_lack(owner: Any, keys: Sequence[Any]) -> bool:
    """Tell whether a value has a field at times, and the fields of it that are asked for."""
    key, *below = keys
    if isinstance(owner, Absent):
        return _is_known(owner.path.rpartition(".")[2], keys)
    if isinstance(owner, Lookup):
        return owner.may_lack(key) and _is_known(key, below)
    return isinstance(owner, Record) and owner.may_lack(key) and _is_known(key, below)


def _is_known(key: Any, below: Sequence[Any]) -> bool:
    return not below or key not in _BELOW or below[0] in _BELOW[key]
