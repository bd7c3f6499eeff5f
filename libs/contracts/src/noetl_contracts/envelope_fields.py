"""The envelope of an event in today's form, also of events that earlier releases wrote.

What is stored stays as it was sealed, and what follows from other fields is not stored twice: only
what is shown is derived. A producer is stored without its owner, as `node/n7/worker/w1`; earlier
releases stored the bare name of a planner.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from noetl_contracts import locators
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId

CORRELATION_CHARACTERS_MAX = 200
# What a producer that is stored without its owner begins with.
_SHORT_KINDS = frozenset({*locators.LOCALITY_KEYS, "planner", "worker"})
# Where the body of an event refers to stored content. No event has two of them.
REFERENCE_FIELDS = (
    "rows_ref",
    "collection_ref",
    "parts_ref",
    "workload_ref",
    "resume_ref",
    "result_ref",
)


def shorten_producer(locator: str, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return a producer as events store it: without the owner, which the event has already."""
    return locator.removeprefix(_owner(tenant_id, organization_id))


def upcast_producer(producer: str, tenant_id: TenantId, organization_id: OrganizationId) -> str:
    """Return a producer as a locator; what earlier releases wrote is the name of a planner."""
    if producer.startswith(locators.SCHEME):
        return producer
    if producer.partition("/")[0] in _SHORT_KINDS:
        return _owner(tenant_id, organization_id) + producer
    return locators.process("planner", producer, tenant_id, organization_id)


@lru_cache(maxsize=128)
def _owner(tenant_id: TenantId, organization_id: OrganizationId) -> str:
    return locators.build("tenant", tenant_id, "org", organization_id) + "/"


def upcast_correlation(correlation_id: str | None, execution_id: ExecutionId) -> str:
    """Return the flow of an event; without one, an execution is a flow of its own."""
    return correlation_id or str(execution_id)


def is_correlation(text: str) -> bool:
    """Tell whether a text may name a flow: 1 to 200 printable characters."""
    return 0 < len(text) <= CORRELATION_CHARACTERS_MAX and text.isprintable()


def find_payload_ref(context: Mapping[str, Any], result: Any) -> dict[str, Any] | None:
    """Return the reference to the stored content that an event is about, None where none is.

    It is that of its result, else that of its chunk of a stream, else the one of its body.
    """
    if isinstance(result, Mapping) and result.get("reference") is not None:
        return dict(result["reference"])
    if isinstance(chunk := context.get("chunk"), Mapping):
        return dict(chunk["ref"])
    found = next((context[name] for name in REFERENCE_FIELDS if context.get(name)), None)
    return None if found is None else dict(found)
