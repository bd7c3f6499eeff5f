"""Triggers over every adapter."""

from datetime import UTC, datetime
from typing import Any

from msgspec import structs
from tests.support.storage import ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts.ids import ExecutionId, TenantId
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests.triggers import Trigger

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
ORDERS = Trigger(
    **PLACE,
    name="orders",
    subject="orders.>",
    path="demo/a",
    version=2,
    inputs={"b": "{{ body.b }}", "a": [1, None]},
    body_bytes_max=10,
    filter="{{ body.b > 1 }}",
    max_in_flight=2,
)


async def test_a_trigger_is_kept_replaced_and_removed(stores: Stores) -> None:
    assert await stores.triggers.find_trigger("orders", **PLACE) is None
    await stores.triggers.put_trigger(ORDERS)
    assert await stores.triggers.find_trigger("orders", **PLACE) == ORDERS
    changed = structs.replace(
        ORDERS, subject="x", is_enabled=False, version=None, filter=None, max_in_flight=None
    )
    await stores.triggers.put_trigger(changed)
    assert await stores.triggers.find_trigger("orders", **PLACE) == changed
    assert await stores.triggers.remove_trigger("orders", **PLACE)
    assert not await stores.triggers.remove_trigger("orders", **PLACE)


async def test_triggers_are_listed_by_name_and_owner(stores: Stores) -> None:
    for name in ("b", "a"):
        await stores.triggers.put_trigger(structs.replace(ORDERS, name=name, subject=name))
    await stores.triggers.put_trigger(structs.replace(ORDERS, tenant_id=TenantId("x")))
    listed = await stores.triggers.list_triggers(**PLACE, triggers_max=9)
    assert [item.name for item in listed] == ["a", "b"]
    assert len(await stores.triggers.list_triggers(**PLACE, triggers_max=1)) == 1


def execution_row(execution: str) -> dict[str, Any]:
    return {
        **PLACE,
        "execution_id": execution,
        "parent_execution_id": None,
        "path": "demo/a",
        "catalog_id": "77",
        "catalog_version": 2,
        "status": "RUNNING",
        "current_step": "start",
        "completed_steps": [],
        "workload": {},
        "variables": {},
        "error": None,
        "result": None,
        "frames": 0,
        "rows": 0,
        "warnings": 0,
        "last_event_id": "42",
        "last_event_type": "step.enter",
        "version": 1,
        "envelope_checksum": "c",
        "started_at": NOON,
        "updated_at": NOON,
        "ended_at": None,
    }


async def claim(stores: Stores, key: str, *, unasked_s: float = 600.0) -> ExecutionId | None:
    return await stores.triggers.claim_place(ORDERS, key, an_execution(), unasked_s=unasked_s)


async def test_as_many_places_are_claimed_as_a_trigger_has(stores: Stores) -> None:
    await stores.triggers.put_trigger(ORDERS)
    first, second = await claim(stores, "a"), await claim(stores, "b")
    assert None not in (first, second)
    assert await claim(stores, "c") is None
    assert await claim(stores, "a") == first, "a message that comes again has its place"
    other = structs.replace(ORDERS, name="other", subject="other")
    await stores.triggers.put_trigger(other)
    assert await stores.triggers.claim_place(other, "c", an_execution(), unasked_s=600)
    await stores.triggers.release_place(ORDERS, "b")
    assert await claim(stores, "c") is not None
    await stores.triggers.put_trigger(structs.replace(ORDERS, max_in_flight=None))
    assert await claim(stores, "d") is not None


async def test_the_place_of_an_execution_that_ended_is_free(stores: Stores) -> None:
    await stores.triggers.put_trigger(structs.replace(ORDERS, max_in_flight=1))
    execution = await claim(stores, "a")
    assert execution is not None
    row = execution_row(execution)
    await stores.projections.apply_rows(
        shard=0, rows={"execution": [row]}, positions={execution: (0, 1)}
    )
    assert await claim(stores, "b") is None
    ended = {**row, "status": "FAILED", "version": 2, "ended_at": NOON}
    await stores.projections.apply_rows(
        shard=0, rows={"execution": [ended]}, positions={execution: (1, 2)}
    )
    assert await claim(stores, "b") is not None


async def test_only_a_place_that_nobody_used_is_free_after_a_while(stores: Stores) -> None:
    await stores.triggers.put_trigger(structs.replace(ORDERS, max_in_flight=1))
    unused = await claim(stores, "a")
    assert unused is not None
    assert await claim(stores, "b") is None
    used = await claim(stores, "b", unasked_s=-60)
    assert used is not None
    # It was asked for, and no projector has seen it yet.
    await stores.requests.submit_request(
        Request(
            **PLACE,
            request_id=f"execute-{used}",
            execution_id=used,
            kind="execute",
            subject="noetl.ingest.0.acme.west",
            data=b"{}",
        )
    )
    assert await claim(stores, "c", unasked_s=-60) is None
