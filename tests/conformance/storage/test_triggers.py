"""Triggers over every adapter."""

from typing import Any

from msgspec import structs
from tests.support.storage import ORGANIZATION, TENANT, Stores

from noetl_contracts.ids import TenantId
from noetl_contracts.requests.triggers import Trigger

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
)


async def test_a_trigger_is_kept_replaced_and_removed(stores: Stores) -> None:
    assert await stores.triggers.find_trigger("orders", **PLACE) is None
    await stores.triggers.put_trigger(ORDERS)
    assert await stores.triggers.find_trigger("orders", **PLACE) == ORDERS
    changed = structs.replace(ORDERS, subject="x", is_enabled=False, version=None, filter=None)
    await stores.triggers.put_trigger(changed)
    assert await stores.triggers.find_trigger("orders", **PLACE) == changed
    assert await stores.triggers.remove_trigger("orders", **PLACE)
    assert not await stores.triggers.remove_trigger("orders", **PLACE)


async def test_triggers_are_listed_by_name_and_owner(stores: Stores) -> None:
    for name in ("b", "a"):
        await stores.triggers.put_trigger(structs.replace(ORDERS, name=name, subject=name))
    await stores.triggers.put_trigger(structs.replace(ORDERS, tenant_id=TenantId("x")))
    listed = await stores.triggers.list_triggers(**PLACE, triggers_max=9)
    assert [one.name for one in listed] == ["a", "b"]
    assert len(await stores.triggers.list_triggers(**PLACE, triggers_max=1)) == 1
