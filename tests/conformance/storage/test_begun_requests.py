"""A request is kept in the transaction of what was decided on it, or nothing of both is."""

import asyncio
from typing import Any

import pytest
from tests.support.storage import (
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_request,
    a_run,
    a_stream,
    an_append,
)

from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger.records import Append, CatalogEntry, Request, ShardFence
from noetl_storage.ports.errors import PlaybookOutdated, RequestKnown, ShardLost

LONG_S = 60.0


def _begins(fence: ShardFence, request: Request, **fields: Any) -> Append:
    stream = a_stream(request.execution_id, [a_run()])
    return an_append(fence, stream, messages=1, begun=request, **fields)


async def _registered(stores: Stores, digest: str, path: str = "p") -> CatalogId:
    entry = CatalogEntry(
        catalog_id=CatalogId(str(int(digest, 16))),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        path=path,
        version=0,
        digest=digest,
        source="",
        model={},
        diagnostics=[],
    )
    return (await stores.catalog.register_playbook(entry)).catalog_id


async def test_a_begun_request_is_kept_settled_and_never_sent(stores: Stores) -> None:
    fence = await a_fence(stores)
    request = a_request(data=b"\x00\xff", idempotency_key="k")
    (written,) = (await stores.ledger.append(_begins(fence, request))).outbox_ids
    assert await stores.requests.find_request(request.request_id) == request
    assert len(await stores.ledger.read_events(request.execution_id)) == 1
    (row,) = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    assert row.outbox_id == written
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=9) == 0


async def test_it_answers_for_its_identity_and_its_key(stores: Stores) -> None:
    fence = await a_fence(stores)
    request = a_request(idempotency_key="once")
    await stores.ledger.append(_begins(fence, request))
    rows, _ = await stores.outbox.count_backlog()
    # As when the answer to the append was lost.
    assert await stores.requests.submit_request(request) == request.execution_id
    assert (
        await stores.requests.submit_request(a_request(idempotency_key="once"))
        == request.execution_id
    )
    assert (await stores.outbox.count_backlog())[0] == rows


@pytest.mark.parametrize("is_begun", [True, False])
async def test_what_is_known_is_refused_and_nothing_written(
    stores: Stores, *, is_begun: bool
) -> None:
    fence = await a_fence(stores)
    first = a_request(idempotency_key="once")
    await (
        stores.ledger.append(_begins(fence, first))
        if is_begun
        else stores.requests.submit_request(first)
    )
    before = await stores.outbox.count_backlog()
    again = a_request(request_id=first.request_id)
    for other in (again, a_request(idempotency_key="once")):
        with pytest.raises(RequestKnown, match="kept before"):
            await stores.ledger.append(_begins(fence, other))
        assert await stores.ledger.read_events(other.execution_id) == []
    assert (await stores.outbox.count_backlog())[0] == before[0]
    elsewhere = a_request(idempotency_key="once", tenant_id="other")
    await stores.ledger.append(_begins(fence, elsewhere))
    assert await stores.requests.find_request(elsewhere.request_id) == elsewhere


async def test_without_the_shard_the_request_is_not_kept(stores: Stores) -> None:
    fence = await a_fence(stores)
    lost = ShardFence(shard=fence.shard, owner=fence.owner, epoch=fence.epoch + 1)
    request = a_request()
    with pytest.raises(ShardLost):
        await stores.ledger.append(_begins(lost, request))
    assert await stores.requests.find_request(request.request_id) is None


async def test_one_key_at_once_begins_one_execution(stores: Stores) -> None:
    fence = await a_fence(stores)
    requests = [a_request(idempotency_key="race") for _ in range(8)]
    answers = await asyncio.gather(
        *(stores.ledger.append(_begins(fence, item)) for item in requests[:4]),
        *map(stores.requests.submit_request, requests[4:]),
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(item, RequestKnown) for item in refused)
    kept = [
        request for request in requests if await stores.requests.find_request(request.request_id)
    ]
    assert len(kept) == 1
    begun = [
        request for request in requests if await stores.ledger.read_events(request.execution_id)
    ]
    assert begun in (kept, [])
    assert {answer for answer in answers if isinstance(answer, str)} <= {kept[0].execution_id}


async def test_a_playbook_begins_only_as_the_latest_of_its_path(stores: Stores) -> None:
    fence = await a_fence(stores)
    first = await _registered(stores, "a1")
    await _registered(stores, "b1", path="another")
    await stores.ledger.append(_begins(fence, a_request(), latest=first))

    second = await _registered(stores, "a2")
    request = a_request()
    with pytest.raises(PlaybookOutdated, match="not the latest"):
        await stores.ledger.append(_begins(fence, request, latest=first))
    assert await stores.requests.find_request(request.request_id) is None
    assert await stores.ledger.read_events(request.execution_id) == []
    await stores.ledger.append(_begins(fence, request, latest=second))
    # Nothing was said of the playbook: one that has a later version is as good.
    await stores.ledger.append(_begins(fence, a_request()))
