import asyncio

import pytest
from msgspec import structs
from tests.conformance.storage.test_projections import command_row, project
from tests.support.storage import (
    Stores,
    a_fence,
    a_message,
    a_request,
    a_run,
    a_stream,
    an_append,
    an_execution,
    eventually,
    settled,
)

from noetl_contracts.ids import ExecutionId

LONG_S = 60.0
SHORT_S = 0.2


async def append_messages(stores: Stores, count: int, *, leased_s: float = 0.0) -> list[int]:
    """Commit messages of one new execution, one transaction."""
    fence = await a_fence(stores)
    batch = an_append(
        fence, a_stream(an_execution(), [a_run()]), messages=count, publish_lease_s=leased_s
    )
    return (await stores.ledger.append(batch)).outbox_ids


async def test_rows_are_claimed_in_order_and_once(stores: Stores) -> None:
    ids = [*await append_messages(stores, 3), *await append_messages(stores, 2)]

    first = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=3)
    second = await stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=9)

    assert [row.outbox_id for row in [*first, *second]] == ids
    assert await stores.outbox.claim_rows(owner="c", lease_s=LONG_S, rows_max=9) == []


async def test_a_settled_row_is_gone(stores: Stores) -> None:
    ids = await append_messages(stores, 2)
    await stores.outbox.claim_rows(owner="a", lease_s=SHORT_S, rows_max=9)
    await stores.outbox.settle_rows(ids[:1])
    await stores.outbox.settle_rows(ids[:1])
    await stores.outbox.settle_rows([])

    assert (await stores.outbox.count_backlog())[0] == 1
    found = await eventually(
        lambda: stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=9),
        what="the lease ends",
    )
    assert [row.outbox_id for row in found] == ids[1:]


async def test_a_released_row_is_claimed_at_once(stores: Stores) -> None:
    ids = await append_messages(stores, 2)
    await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    await stores.outbox.release_rows(ids)
    rows = await stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=9)
    assert [row.outbox_id for row in rows] == ids


async def test_a_leased_row_holds_back_the_later_ones_of_its_execution(stores: Stores) -> None:
    early = await append_messages(stores, 4)
    other = await append_messages(stores, 1)
    await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=2)
    await stores.outbox.settle_rows(early[:1])

    rows = await stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=9)
    assert [row.outbox_id for row in rows] == other

    await stores.outbox.settle_rows(early[1:2])
    rows = await stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=9)
    assert [row.outbox_id for row in rows] == early[2:]


async def test_the_writer_publishes_first_while_its_lease_lasts(stores: Stores) -> None:
    ids = await append_messages(stores, 2, leased_s=SHORT_S)
    assert (await stores.outbox.count_backlog())[0] == 2
    found = await eventually(
        lambda: stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=9),
        what="the lease ends",
    )
    assert [row.outbox_id for row in found] == ids


async def test_claimers_at_the_same_time_share_nothing(stores: Stores) -> None:
    committed = [
        outbox_id
        for batch in await asyncio.gather(*(append_messages(stores, 5) for _ in range(8)))
        for outbox_id in batch
    ]
    claims = await asyncio.gather(
        *(stores.outbox.claim_rows(owner=str(n), lease_s=LONG_S, rows_max=10) for n in range(8))
    )
    claimed = [row.outbox_id for claim in claims for row in claim]
    assert len(claimed) == len(set(claimed))
    # Rows behind one of their execution that another owner holds wait until it is settled.
    await stores.outbox.settle_rows(claimed)
    rest = await stores.outbox.claim_rows(owner="last", lease_s=LONG_S, rows_max=len(committed))
    assert sorted([*claimed, *(row.outbox_id for row in rest)]) == sorted(committed)


async def test_order_holds_while_many_claim_settle_and_append(stores: Stores) -> None:
    executions = [an_execution() for _ in range(4)]
    fence = await a_fence(stores)
    published: dict[str, list[int]] = {execution: [] for execution in executions}

    async def write(execution: ExecutionId) -> None:
        for version in range(15):
            stream = a_stream(execution, [a_run()], after=version)
            await stores.ledger.append(an_append(fence, stream, messages=1))

    async def drain(owner: str) -> None:
        while sum(map(len, published.values())) < 60:
            rows = await stores.outbox.claim_rows(owner=owner, lease_s=LONG_S, rows_max=3)
            for row in rows:
                published[row.execution_id].append(row.outbox_id)
            await stores.outbox.settle_rows([row.outbox_id for row in rows])

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for execution in executions:
            group.create_task(write(execution))
        for owner in ("a", "b", "c"):
            group.create_task(drain(owner))

    for ids in published.values():
        assert ids == sorted(ids)
        assert len(ids) == 15


async def test_the_backlog_knows_its_age(stores: Stores) -> None:
    assert await stores.outbox.count_backlog() == (0, 0.0)
    await append_messages(stores, 1)

    async def has_aged() -> bool:
        rows, oldest_s = await stores.outbox.count_backlog()
        return rows == 1 and 0.05 < oldest_s < LONG_S

    await eventually(has_aged, what="the row ages")


async def test_a_request_goes_out_with_its_bytes(stores: Stores) -> None:
    request = a_request(data=b"\x00\xff bytes")
    assert await stores.requests.submit_request(request) == request.execution_id
    (row,) = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    assert (row.execution_id, row.subject, row.data) == (
        request.execution_id,
        request.subject,
        request.data,
    )


async def test_the_same_key_answers_with_the_first_execution(stores: Stores) -> None:
    first = a_request(idempotency_key="once")
    assert await stores.requests.submit_request(first) == first.execution_id
    for again in (first, a_request(idempotency_key="once")):
        assert await stores.requests.submit_request(again) == first.execution_id
    assert (await stores.outbox.count_backlog())[0] == 1

    elsewhere = a_request(idempotency_key="once", tenant_id="other")
    assert await stores.requests.submit_request(elsewhere) == elsewhere.execution_id
    keyless = [a_request(), a_request()]
    for item in keyless:
        assert await stores.requests.submit_request(item) == item.execution_id


async def test_a_request_is_found_as_it_was_made(stores: Stores) -> None:
    request = a_request(data=b"\x00\xff", idempotency_key="k")
    await stores.requests.submit_request(request)
    assert await stores.requests.find_request(request.request_id) == request
    assert await stores.requests.find_request("unknown") is None


async def test_the_same_key_at_once_makes_one_execution(stores: Stores) -> None:
    requests = [a_request(idempotency_key="race") for _ in range(8)]
    answers = await asyncio.gather(*map(stores.requests.submit_request, requests))
    assert len(set(answers)) == 1
    assert (await stores.outbox.count_backlog())[0] == 1


async def test_a_settled_key_still_answers(stores: Stores) -> None:
    first = a_request(idempotency_key="done")
    await stores.requests.submit_request(first)
    fence = await a_fence(stores)
    await stores.ledger.append(
        an_append(
            fence,
            a_stream(first.execution_id, [a_run()]),
            settled_requests=[settled(first), settled(a_request())],
        )
    )
    assert (
        await stores.requests.submit_request(a_request(idempotency_key="done"))
        == first.execution_id
    )


async def test_a_settled_request_is_not_sent_again(stores: Stores) -> None:
    fence = await a_fence(stores)
    request, other = a_request(), a_request()
    await stores.requests.submit_request(request)
    await stores.requests.submit_request(other)
    stream = a_stream(request.execution_id, [a_run()])
    batch = an_append(fence, stream, messages=1, settled_requests=[settled(request)])
    (written,) = (await stores.ledger.append(batch)).outbox_ids
    rows = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    assert [row.message_id for row in rows if row.outbox_id != written] == [other.request_id]
    assert written in {row.outbox_id for row in rows}


@pytest.mark.parametrize(
    "other", [{"execution_id": "7"}, {"tenant_id": "evil"}, {"organization_id": "east"}]
)
async def test_a_request_of_somebody_else_is_not_settled(
    stores: Stores, other: dict[str, str]
) -> None:
    fence = await a_fence(stores)
    request = a_request()
    await stores.requests.submit_request(request)
    stranger = settled(request, **other)
    await stores.ledger.append(an_append(fence, settled_requests=[stranger]))
    (row,) = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    assert row.message_id == request.request_id
    await stores.outbox.settle_rows([row.outbox_id])
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=9) == 1
    await stores.ledger.append(an_append(fence, settled_requests=[settled(request)]))
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=9) == 0


async def test_settled_requests_of_the_reaper_are_forgotten_unless_a_key_may_come_again(
    stores: Stores,
) -> None:
    fence = await a_fence(stores)
    waiting, other, keyed, *over = [
        structs.replace(a_request(), kind="reaper", idempotency_key=None) for _ in range(6)
    ]
    other = structs.replace(other, kind="execute")
    keyed = structs.replace(keyed, idempotency_key="again")
    for request in (waiting, other, keyed, *over):
        await stores.requests.submit_request(request)
    done = [settled(request) for request in (other, keyed, *over)]
    await stores.ledger.append(an_append(fence, settled_requests=done))

    async def forget(settled_for_s: float = -1.0) -> int:
        return await stores.requests.forget_requests(settled_for_s=settled_for_s, requests_max=2)

    assert await forget(LONG_S) == 0
    assert [await forget(), await forget(), await forget()] == [2, 1, 0]
    requests = [
        await stores.requests.find_request(item.request_id) for item in (waiting, other, keyed)
    ]
    assert None not in requests
    assert [await stores.requests.find_request(item.request_id) for item in over] == [None] * 3


async def test_only_stranded_requests_are_driven_again(stores: Stores) -> None:
    requests = [a_request(), a_request(), a_request()]
    for request in requests:
        await stores.requests.submit_request(request)
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=9) == 0

    rows = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    await stores.outbox.settle_rows([row.outbox_id for row in rows])
    assert await stores.requests.redrive_requests(older_than_s=LONG_S, requests_max=9) == 0
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=2) == 2
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=9) == 1
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=9) == 0

    again = await stores.outbox.claim_rows(owner="a", lease_s=LONG_S, rows_max=9)
    assert {row.execution_id for row in again} == {item.execution_id for item in requests}
    assert not {row.message_id for row in again} & {row.message_id for row in rows}


async def test_a_command_that_has_begun_is_not_sent_again(stores: Stores) -> None:
    execution = an_execution()
    rows = [
        command_row(execution, "501", status="RUNNING"),
        command_row(execution, "502", status="ISSUED"),
        command_row(execution, "503", status="ISSUED", attempts=2),
        command_row(execution, "504", status="COMPLETED"),
    ]
    await project(stores, execution, command=rows)
    sent = ["command/501/1", "command/502/1", "command/503/1", "command/503/2", "command/504/1"]
    sent += ["command/505/1", "events/501/1-3", "command/501"]
    messages = [
        structs.replace(a_message(execution, place), message_id=message_id)
        for place, message_id in enumerate(sent)
    ]
    batch = an_append(await a_fence(stores), a_stream(execution, [a_run()]))
    await stores.ledger.append(structs.replace(batch, messages=messages, publish_lease_s=SHORT_S))

    found = await eventually(
        lambda: stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=99),
        what="the lease of the planner ends",
    )
    assert [row.message_id for row in found] == [
        "command/502/1",
        "command/503/2",
        "command/505/1",
        "events/501/1-3",
        "command/501",
    ]
    assert (await stores.outbox.count_backlog())[0] == len(found)


async def test_a_command_that_was_on_no_way_yet_is_sent(stores: Stores) -> None:
    execution = an_execution()
    await project(stores, execution, command=[command_row(execution, "501", status="RUNNING")])
    batch = an_append(await a_fence(stores), a_stream(execution, [a_run()]))
    message = structs.replace(a_message(execution), message_id="command/501/1")
    await stores.ledger.append(structs.replace(batch, messages=[message]))
    (row,) = await stores.outbox.claim_rows(owner="b", lease_s=LONG_S, rows_max=99)
    assert row.message_id == "command/501/1"
