"""Facts whose form holds and whose values no worker of ours can have meant."""

from typing import Any

from msgspec import Struct

from noetl_contracts import ids
from noetl_contracts.envelope_fields import is_correlation
from noetl_contracts.errors import MalformedMessage, ResultMalformed
from noetl_contracts.facts import ItemsCollected, PartsCollected
from noetl_contracts.parking import TIMEOUT_S_MAX
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.plain import DEPTH_MAX, is_deeper
from noetl_playbook import carried_form

# Numbers that JSON's other readers and every column hold.
NUMBER_MAX = 2**53
_NESTED_MAX = 4
# A result is held by its task, its pipeline and its context.
_LEVELS_MAX = DEPTH_MAX + 16
_IDENTITIES = frozenset(
    {
        *("command_id", "execution_id", "child_execution_id", "parent_execution_id"),
        *("stage_id", "frame_id", "parent_frame_id", "run_id"),
    }
)


def check(fact: Struct) -> None:
    """Raise `MalformedMessage` or `ResultMalformed` for what would break whoever believes it."""
    if isinstance(fact, ItemsCollected | PartsCollected):
        # Said from elsewhere they would end a loop whose work goes on.
        raise MalformedMessage(f"{type(fact).__name__} is the planner's own to say")
    _check(fact, type(fact).__name__, nested=0)


def _check(value: Struct, what: str, *, nested: int) -> None:
    """Look at a Struct's own fields, and at those of what it holds."""
    for name in value.__struct_fields__:
        field: Any = getattr(value, name)
        if field is None:
            continue
        place = f"{what}.{name}"
        if name in _IDENTITIES and not ids.is_identity(field):
            raise MalformedMessage(f"{place} is {field[:80]!r}, which is no identity")
        if type(field) is int and not 0 <= field <= NUMBER_MAX:
            raise MalformedMessage(f"{place} is out of bounds")
        if name == "correlation_id" and not is_correlation(field):
            raise MalformedMessage(f"{place} is no name of a flow")
        if name == "timeout_s" and not 0 <= field <= TIMEOUT_S_MAX:
            raise MalformedMessage(f"{place} is no number of seconds that anybody waits")
        _check_held(field, place, nested=nested)


def _check_held(field: Any, place: str, *, nested: int) -> None:
    """Look into a value: free-form documents are read with their own limits."""
    if isinstance(field, Struct) and nested < _NESTED_MAX:
        _check(field, place, nested=nested + 1)
    if isinstance(field, ResultEnvelope):
        _check_result(field, place)
    if isinstance(field, dict) and is_deeper(field, _LEVELS_MAX):
        raise MalformedMessage(f"{place} is nested deeper than {_LEVELS_MAX} levels")
    if isinstance(field, list):
        for one in field:
            _check_held(one, place, nested=nested)


def _check_result(result: ResultEnvelope, place: str) -> None:
    try:
        carried_form.check(result)
    except ResultMalformed as failure:
        raise ResultMalformed(f"{place}: {failure}") from failure
