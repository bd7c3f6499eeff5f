"""JSON Schema of everything that crosses a process boundary."""

from typing import Any

import msgspec

from noetl_contracts.commands.command_work import Command
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import CLASS_BY_TYPE
from noetl_contracts.ledger.envelope import Envelope, EventBatch
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests.facts import FactBatch

_BOUNDARY: dict[str, type[msgspec.Struct]] = {
    "envelope": Envelope,
    "event-batch": EventBatch,
    "fact-batch": FactBatch,
    "command": Command,
    "payload-ref": PayloadRef,
    "result": ResultEnvelope,
    "error": ErrorObject,
}


def list_schema_names() -> list[str]:
    """List every schema that `build_json_schema` can produce."""
    return sorted([*_BOUNDARY, *CLASS_BY_TYPE])


def build_json_schema(name: str) -> dict[str, Any]:
    """Return one JSON Schema; raises `KeyError` for an unlisted name."""
    return msgspec.json.schema(_BOUNDARY[name] if name in _BOUNDARY else CLASS_BY_TYPE[name])
