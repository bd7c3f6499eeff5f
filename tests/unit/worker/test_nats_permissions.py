"""Which calls of a shared connection end by what the server forbids."""

import asyncio
from typing import Any

import pytest

from noetl_worker.tools.nats.permissions import PermissionWatch

BUCKET = 'permissions violation for publish to "$js.api.stream.info.kv_orders"'
SUBJECT = 'permissions violation for publish to "shop.orders.new"'
INBOX = 'permissions violation for subscription to "_inbox.a1.*"'


async def list_ended(complaint: str, *calls: dict[str, Any]) -> list[bool]:
    """Tell of each call whether a complaint ends it."""
    watch, complained = PermissionWatch(), asyncio.Event()

    async def run(fields: dict[str, Any]) -> bool:
        try:
            async with watch.watch_call(fields) as call:
                await complained.wait()
                # The loop has a chance to end the call before it ends by itself.
                await asyncio.sleep(0.01)
        except TimeoutError:
            assert call.complaint == complaint
            return True
        assert not call.complaint
        return False

    running = [asyncio.create_task(run(fields)) for fields in calls]
    await asyncio.sleep(0)
    watch.report_complaint(complaint)
    watch.report_complaint(complaint)
    complained.set()
    return await asyncio.gather(*running)


@pytest.mark.parametrize(
    ("complaint", "fields", "is_ended"),
    [
        (BUCKET, {"bucket": "Orders"}, True),
        (BUCKET, {"bucket": "order"}, False),
        (BUCKET, {"stream": "KV_orders"}, True),
        (SUBJECT, {"subject": "shop.orders.new"}, True),
        (SUBJECT, {"subject": "shop.orders"}, False),
        (INBOX, {"bucket": "orders"}, True),
        (INBOX, {}, True),
        ("slow consumer", {"bucket": "slow"}, False),
    ],
)
async def test_a_call_ends_by_what_concerns_it(
    complaint: str, fields: dict[str, Any], *, is_ended: bool
) -> None:
    assert await list_ended(complaint, fields) == [is_ended]


async def test_the_other_calls_of_a_connection_go_on() -> None:
    assert await list_ended(BUCKET, {"bucket": "orders"}, {"bucket": "bills"}) == [True, False]
