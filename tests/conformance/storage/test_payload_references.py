from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs
from tests.support.storage import (
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_request,
    a_run,
    a_stream,
    an_append,
    an_execution,
)

from noetl_contracts import codec, locators
from noetl_contracts.events import Event
from noetl_contracts.events.step import CallDone
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_storage.payload_ports import Owner

OWNER = Owner(tenant_id=TENANT, organization_id=ORGANIZATION)
OTHER = Owner(tenant_id=TenantId("other"), organization_id=OrganizationId("east"))
DIGESTS = [codec.digest(b"%d" % n) for n in range(4)]


def a_result(digest: str, *, text: str = "") -> Event:
    reference = PayloadRef(
        uri=locators.payload(TENANT, ORGANIZATION, digest),
        sha256=digest,
        media_type="application/json",
        payload_bytes=1,
    )
    return CallDone(
        step="s",
        run_id=RunId("1"),
        command_id=CommandId("1"),
        result=ResultEnvelope(status="ok", reference=reference, context={"fields": {"x": text}}),
    )


async def append(stores: Stores, execution: ExecutionId, events: list[Event], owner: Owner) -> None:
    place = structs.asdict(owner)
    stream = a_stream(execution, events, **place)
    await stores.ledger.append(an_append(await a_fence(stores), stream))


async def mentioned(stores: Stores, owner: Owner, digests: Collection[str]) -> set[str]:
    pages = [page async for page in stores.references.list_mentioned(owner, digests)]
    return set().union(*pages)


async def project(stores: Stores, execution: ExecutionId, status: str, *, version: int) -> None:
    row: dict[str, Any] = {
        "execution_id": execution,
        **structs.asdict(OWNER),
        "path": "p",
        "status": status,
        "version": version,
        "envelope_checksum": "",
    }
    await stores.projections.apply(
        shard=0, rows={"execution": [row]}, positions={execution: (0, version)}
    )


async def test_every_digest_in_an_owners_events_is_a_mention(stores: Stores) -> None:
    inner = f"read noetl://x/sha256/{DIGESTS[1]}, please"
    await append(stores, an_execution(), [a_run(), a_result(DIGESTS[0], text=inner)], OWNER)
    await append(stores, an_execution(), [a_result(DIGESTS[2])], OTHER)

    assert await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS[:2])
    assert await mentioned(stores, OWNER, DIGESTS[1:3]) == {DIGESTS[1]}
    assert await mentioned(stores, OTHER, set(DIGESTS)) == {DIGESTS[2]}
    assert await stores.references.list_owners() == sorted(
        [OWNER, OTHER], key=lambda owner: owner.tenant_id
    )


async def test_text_that_the_database_cannot_hold_as_it_is_counts_too(stores: Stores) -> None:
    odd = a_result(DIGESTS[0], text=f"\x00{DIGESTS[1]}\n{DIGESTS[2]}\f{DIGESTS[3]}")
    await append(stores, an_execution(), [odd], OWNER)
    assert await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS)


async def test_work_that_has_not_ended_holds_what_was_written_since(stores: Stores) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    assert await stores.references.held_since(OWNER) is None
    execution = an_execution()
    await append(stores, execution, [a_run()], OWNER)

    # No projector has seen it.
    since = await stores.references.held_since(OWNER)
    assert since is not None
    assert since > before
    assert await stores.references.held_since(OTHER) is None

    await project(stores, execution, "RUNNING", version=1)
    assert await stores.references.held_since(OWNER) == since


async def test_work_that_has_ended_holds_nothing(stores: Stores) -> None:
    execution = an_execution()
    await append(stores, execution, [a_run()], OWNER)
    await project(stores, execution, "COMPLETED", version=1)
    assert await stores.references.held_since(OWNER) is None


async def test_a_projection_that_lags_shows_no_end(stores: Stores) -> None:
    execution = an_execution()
    await append(stores, execution, [a_run(), a_run()], OWNER)
    await project(stores, execution, "COMPLETED", version=1)
    assert await stores.references.held_since(OWNER) is not None


async def test_a_request_that_nobody_has_settled_holds(stores: Stores) -> None:
    await stores.requests.submit(a_request())
    assert await stores.references.held_since(OWNER) is not None
