"""Facts whose form holds and whose values no worker of ours can have meant."""

from typing import Any

from msgspec import Struct

from noetl_contracts import ids
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.facts import ItemsCollected, PartsCollected

# Numbers that JSON's other readers and every column hold.
NUMBER_MAX = 2**53
_DEPTH_MAX = 4
_IDENTITIES = frozenset(
    {
        *("command_id", "execution_id", "child_execution_id", "parent_execution_id"),
        *("stage_id", "frame_id", "parent_frame_id", "run_id"),
    }
)


def check(fact: Struct) -> None:
    """Raise `MalformedMessage` for what would break whoever believes it."""
    if isinstance(fact, ItemsCollected | PartsCollected):
        # Said from elsewhere they would end a loop whose work goes on.
        raise MalformedMessage(f"{type(fact).__name__} is the planner's own to say")
    _check(fact, type(fact).__name__, depth=0)


def _check(value: Struct, what: str, *, depth: int) -> None:
    """Look at a Struct's own fields; free-form documents are read with their own limits."""
    for name in value.__struct_fields__:
        field: Any = getattr(value, name)
        if field is None:
            continue
        if name in _IDENTITIES and not ids.is_identity(field):
            raise MalformedMessage(f"{what}.{name} is {field[:80]!r}, which is no identity")
        if type(field) is int and not 0 <= field <= NUMBER_MAX:
            raise MalformedMessage(f"{what}.{name} is out of bounds")
        if isinstance(field, Struct) and depth < _DEPTH_MAX:
            _check(field, f"{what}.{name}", depth=depth + 1)
