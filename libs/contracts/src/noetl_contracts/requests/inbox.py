"""Messages from outside for waiting commands: their subjects, fields and delivery."""

import shlex
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET

from noetl_contracts import codec
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import InboxMessage, OpenWait, Request
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import FactBatch, MessageArrived

CALLBACK = "callback"
SIGNAL = "signal"
APPROVAL = "approval"
MODES = (CALLBACK, SIGNAL, APPROVAL)
ANY = "any"
# What `noetl approve` decides where nothing else is said.
APPROVED = "approve"
REQUEST_KIND = "letter"

_TYPES: dict[str, tuple[type, ...]] = {
    ANY: (object,),
    "string": (str,),
    "str": (str,),
    "integer": (int,),
    "int": (int,),
    "number": (int, float),
    "float": (int, float),
    "boolean": (bool,),
    "bool": (bool,),
    "object": (dict,),
    "mapping": (dict,),
    "array": (list,),
    "list": (list,),
}
TYPE_NAMES = tuple(_TYPES)


def build_callback_address(token: str) -> str:
    """Address the bearer of a token; the token itself is kept nowhere."""
    return f"{CALLBACK}/{codec.digest_hex(token.encode())}"


def build_signal_address(correlation_key: str) -> str:
    """Build the inbox address of the waits for a correlation key."""
    return f"{SIGNAL}/{correlation_key}"


def build_approval_address(approval_id: str) -> str:
    """Address an approval by its id."""
    return f"{APPROVAL}/{approval_id}"


def build_send_command(wait: MessageWait) -> str:
    """Write the command that sends what is waited for; empty for a callback."""
    target = wait.address.partition("/")[2]
    if wait.mode == SIGNAL:
        return f"noetl signal {shlex.quote(target)} --data '{{}}'"
    if wait.mode != APPROVAL:
        return ""
    is_plain = not wait.options or APPROVED in wait.options
    option = "" if is_plain else f" --decision {shlex.quote(wait.options[0])}"
    return f"noetl approve {target}{option}"


def list_schema_faults(schema: Mapping[str, str], body: Any) -> list[str]:
    """Say what a message lacks of the keys that it must have; an error report lacks nothing."""
    if not schema or is_error_report(body):
        return []
    if not isinstance(body, Mapping):
        return [f"the message is no mapping, it needs {', '.join(schema)}"]
    schema_faults = [f"{name!r} is missing" for name in schema if name not in body]
    schema_faults += [
        f"{name!r} is not of type {kind}"
        for name, kind in schema.items()
        if name in body and not _is_of_type(body[name], kind)
    ]
    return schema_faults


def is_error_report(body: Any) -> bool:
    """Tell whether a message reports that what was submitted has failed."""
    return isinstance(body, Mapping) and body.get("status") == "error" and "error" in body


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind in ("boolean", "bool", ANY)
    return isinstance(value, _TYPES.get(kind, (object,)))


def build_wait_name(wait: OpenWait) -> str:
    """Name one wait for good: that of another attempt is another one."""
    return f"{wait.command_id}/{wait.wait.key}"


def find_wait_end(wait: OpenWait) -> datetime | None:
    """Return when a wait ends; what is further away than dates go has none."""
    if wait.since is None:
        return None
    try:
        return wait.since + timedelta(seconds=wait.wait.timeout_s)
    except OverflowError:
        return None


def build_delivery_request(
    inbox_message: InboxMessage, wait: OpenWait, *, routes: IngestRoutes, producer: str
) -> Request:
    """Ask the planner to tell a waiting command; asking twice is asking once."""
    request_id = f"letter-{inbox_message.letter_id}"
    batch = FactBatch(
        key=request_id,
        execution_id=wait.execution_id,
        tenant_id=wait.tenant_id,
        organization_id=wait.organization_id,
        producer=producer,
        facts=[
            MessageArrived(
                command_id=wait.command_id,
                key=wait.wait.key,
                result=codec.decode_as(inbox_message.data, ResultEnvelope),
            )
        ],
        request_id=request_id,
        actor=UNSET if inbox_message.actor is None else inbox_message.actor,
    )
    return Request(
        request_id=request_id,
        execution_id=wait.execution_id,
        tenant_id=wait.tenant_id,
        organization_id=wait.organization_id,
        kind=REQUEST_KIND,
        subject=routes.build_subject(wait.execution_id, wait.tenant_id, wait.organization_id),
        data=codec.encode_json(batch),
        idempotency_key=request_id,
    )
