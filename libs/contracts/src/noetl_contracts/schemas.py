"""JSON Schema of everything that crosses a process boundary."""

from typing import Any

import msgspec

from noetl_contracts.commands import Command
from noetl_contracts.envelope import Envelope, EventBatch
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import CLASS_BY_TYPE
from noetl_contracts.facts import FactBatch
from noetl_contracts.payloads import PayloadRef, ResultEnvelope

_BOUNDARY: dict[str, type[msgspec.Struct]] = {
    "envelope": Envelope,
    "event-batch": EventBatch,
    "fact-batch": FactBatch,
    "command": Command,
    "payload-ref": PayloadRef,
    "result": ResultEnvelope,
    "error": ErrorObject,
}


def names() -> list[str]:
    """List every schema that `schema` can produce."""
    return sorted([*_BOUNDARY, *CLASS_BY_TYPE])


def schema(name: str) -> dict[str, Any]:
    """Return one JSON Schema; raises `KeyError` for a name that `names` does not list."""
    return msgspec.json.schema(_BOUNDARY[name] if name in _BOUNDARY else CLASS_BY_TYPE[name])
