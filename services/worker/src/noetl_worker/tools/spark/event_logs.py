"""Spark's event log of a task, kept with the run: masked as logs are, by reference."""

import asyncio
from typing import Any

from noetl_contracts import codec
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.spark.tables.kept_events import KeptEvents
from noetl_worker.tools.calls import references
from noetl_worker.tools.calls.call import Call

_FIELD = "event_log"


def open_event_log(call: Call, *, is_stream: bool) -> KeptEvents | None:
    """Return what takes the events of a call that keeps them; raises `ToolFailure`."""
    if not coercion.coerce_boolean(call.fields.get(_FIELD)):
        return None
    if is_stream:
        text = "event_log keeps the jobs of a task that ends: a stream has no room for its own"
        raise ToolFailure(build_error("validation", text, source="spark"))
    return KeptEvents()


async def store_event_log(
    kept: KeptEvents, payloads: TenantPayloads, mask: SecretMask
) -> dict[str, Any]:
    """Store the events as a list; return the reference that results and errors show."""

    def encode_masked() -> bytes:
        events = [mask.mask_value(codec.decode_json(line.encode())) for line in kept.lines]
        return codec.encode_json(events)

    count = len(kept.lines)
    ref = await payloads.store_payload(
        await asyncio.to_thread(encode_masked), media_type=JSON_MEDIA_TYPE, row_count=count
    )
    return {
        _FIELD: {
            **references.build_reference(ref),
            "event_count": count,
            "left_out_count": kept.left_out,
        }
    }
