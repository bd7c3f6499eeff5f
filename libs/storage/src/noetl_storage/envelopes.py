"""Results into envelopes and back: what is small travels in its event, the rest is stored first.

Both ways work over whatever stores and reads: the payload store itself (`keeping`, `reading`), or
what a service has put in front of it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import (
    INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.plain import DEPTH_MAX, is_deeper
from noetl_storage import loading
from noetl_storage.encoding import PayloadUnreadable
from noetl_storage.ports import Payloads

# Gives the decoded value of a reference.
Load = Callable[[PayloadRef], Awaitable[Any]]


class Keep(Protocol):
    """Stores content of one owner; it is durable when this returns."""

    async def __call__(
        self, data: bytes, *, media_type: str, row_count: int | None = None
    ) -> PayloadRef:
        """Return the reference to the content."""


def keeping(payloads: Payloads, *, tenant_id: TenantId, organization_id: OrganizationId) -> Keep:
    """Store into a payload store, for one owner."""

    async def keep(data: bytes, *, media_type: str, row_count: int | None = None) -> PayloadRef:
        return await payloads.put(
            data,
            tenant_id=tenant_id,
            organization_id=organization_id,
            media_type=media_type,
            row_count=row_count,
        )

    return keep


def reading(payloads: Payloads) -> Load:
    """Read from a payload store; raises as its `read` does, and `PayloadUnreadable`."""

    async def load(reference: PayloadRef) -> Any:
        try:
            return await loading.load(payloads.read, reference)
        except msgspec.DecodeError as failure:
            text = f"the payload {reference.sha256} is no result: {failure}"
            raise PayloadUnreadable(text) from failure

    return load


async def externalize(
    keep: Keep,
    data: bytes,
    *,
    inline: Callable[[], Mapping[str, Any]],
    beside: Mapping[str, Any],
    status: str = "ok",
    row_count: int | None = None,
) -> ResultEnvelope:
    """Return the envelope of a result whose kept form is `data`, encoded as JSON.

    `inline` gives the context of one that travels, `beside` is that of a stored one. What is not
    large is inline to the playbook also when it is stored. Raises what `keep` raises.
    """
    if len(data) <= RESULT_INLINE_BYTES_MAX:
        travelling = dict(inline())
        if not is_deeper(travelling, DEPTH_MAX):
            return ResultEnvelope(status=status, context=travelling)
    reference = await keep(data, media_type=JSON_MEDIA_TYPE, row_count=row_count)
    shown = {"is_inline": True} if len(data) <= INLINE_BYTES_MAX else {}
    return ResultEnvelope(status=status, reference=reference, context={**beside, **shown})


async def resolve(load: Load, envelope: ResultEnvelope | None) -> Any:
    """Return the kept form of a result, loaded where it is stored; raises what `load` raises."""
    if envelope is None:
        return {}
    if envelope.reference is None:
        return envelope.context.get("data", {})
    return await load(envelope.reference)


async def loaded(load: Load, envelope: ResultEnvelope | None) -> dict[str, Any]:
    """Return what of a result is stored, by digest: nothing for one that travels."""
    if envelope is None or envelope.reference is None:
        return {}
    return {envelope.reference.sha256: await load(envelope.reference)}
