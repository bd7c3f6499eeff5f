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
    eventually,
)

from noetl_contracts import codec, locators
from noetl_contracts.events import Event
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ids import CommandId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.ledger.records import InboxMessage
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_storage.ports.payload_ports import Owner

OWNER = Owner(tenant_id=TENANT, organization_id=ORGANIZATION)
OTHER = Owner(tenant_id=TenantId("other"), organization_id=OrganizationId("east"))
DIGESTS = [codec.digest_hex(b"%d" % n) for n in range(4)]


def a_result(digest: str, *, text: str = "", **about: Any) -> Event:
    reference = PayloadRef(
        uri=locators.build_payload_locator(TENANT, ORGANIZATION, digest),
        sha256=digest,
        media_type="application/json",
        payload_bytes=1,
    )
    return CallDone(
        step="s",
        run_id=RunId("1"),
        command_id=CommandId("1"),
        result=ResultEnvelope(
            status="ok", reference=reference, context={"fields": {"x": text}, **about}
        ),
    )


async def append(stores: Stores, execution: ExecutionId, events: list[Event], owner: Owner) -> None:
    place = structs.asdict(owner)
    stream = a_stream(execution, events, **place)
    await stores.ledger.append(an_append(await a_fence(stores), stream))


async def mentioned(stores: Stores, owner: Owner, digests: Collection[str]) -> set[str]:
    pages = [page async for page in stores.references.iterate_mentioned(owner, digests)]
    return set().union(*pages)


async def project(
    stores: Stores, execution: ExecutionId, status: str, *, version: int, old: int = 0
) -> None:
    row: dict[str, Any] = {
        "execution_id": execution,
        **structs.asdict(OWNER),
        "path": "p",
        "status": status,
        "version": version,
        "envelope_checksum": "",
    }
    await stores.projections.apply_rows(
        shard=0, rows={"execution": [row]}, positions={execution: (old, version)}
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
    assert await stores.references.find_held_since(OWNER) is None
    execution = an_execution()
    await append(stores, execution, [a_run()], OWNER)

    # No projector has seen it.
    since = await stores.references.find_held_since(OWNER)
    assert since is not None
    assert since > before
    assert await stores.references.find_held_since(OTHER) is None

    await project(stores, execution, "RUNNING", version=1)
    assert await stores.references.find_held_since(OWNER) == since


async def test_work_that_has_ended_holds_nothing(stores: Stores) -> None:
    execution = an_execution()
    await append(stores, execution, [a_run()], OWNER)
    await project(stores, execution, "COMPLETED", version=1)
    assert await stores.references.find_held_since(OWNER) is None


async def test_a_projection_that_lags_shows_no_end(stores: Stores) -> None:
    execution = an_execution()
    await append(stores, execution, [a_run(), a_run()], OWNER)
    await project(stores, execution, "COMPLETED", version=1)
    assert await stores.references.find_held_since(OWNER) is not None


async def test_a_request_that_nobody_has_settled_holds(stores: Stores) -> None:
    await stores.requests.submit_request(a_request())
    assert await stores.references.find_held_since(OWNER) is not None


async def test_a_message_that_nobody_takes_holds_what_it_mentions_alone(stores: Stores) -> None:
    mention = ResultEnvelope(status="ok", context={"see": DIGESTS[0]})
    letter = InboxMessage(
        **structs.asdict(OWNER), address="signal/odd", digest="d", data=codec.encode_json(mention)
    )
    await stores.requests.keep_message(letter, open_wait=None, is_single=False)
    assert await stores.references.find_held_since(OWNER) is None
    assert await mentioned(stores, OWNER, DIGESTS) == {DIGESTS[0]}
    assert await mentioned(stores, OTHER, DIGESTS) == set()


async def test_a_result_that_is_over_is_no_mention_once_its_execution_has_ended(
    stores: Stores,
) -> None:
    odd = f"\x00{DIGESTS[2]}"
    over = [
        a_result(DIGESTS[0], text=DIGESTS[1], ttl_s=0),
        a_result(DIGESTS[3], text=odd, ttl_s=0.0),
    ]
    execution = an_execution()
    await append(stores, execution, over, OWNER)
    # It lives, and so does what it refers to.
    assert await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS)
    await project(stores, execution, "RUNNING", version=2)
    assert await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS)
    await project(stores, execution, "COMPLETED", version=2, old=2)

    async def is_over() -> bool:
        # What stands beside the reference still counts.
        return await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS[1:3])

    await eventually(is_over, what="a moment has passed")
    # Somebody else who refers to it without an end holds it.
    await append(stores, an_execution(), [a_result(DIGESTS[0])], OWNER)
    assert await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS[:3])


async def test_a_result_holds_its_content_for_its_time(stores: Stores) -> None:
    execution = an_execution()
    await append(stores, execution, [a_result(DIGESTS[0], ttl_s=3600)], OWNER)
    await append(stores, an_execution(), [a_result(DIGESTS[1], ttl_s="soon")], OWNER)
    await project(stores, execution, "COMPLETED", version=1)
    assert await mentioned(stores, OWNER, DIGESTS) == set(DIGESTS[:2])


async def test_executions_without_a_history_are_told_apart(stores: Stores) -> None:
    known_names, strange = an_execution(), an_execution()
    await append(stores, known_names, [a_run()], OWNER)
    assert await stores.references.list_known_executions(OWNER, [known_names, strange]) == {
        known_names
    }
    assert await stores.references.list_known_executions(OTHER, [known_names]) == set()
