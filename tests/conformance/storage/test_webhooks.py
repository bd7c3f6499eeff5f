"""Webhooks over every adapter."""

from typing import Any

from msgspec import structs
from tests.support.storage import ORGANIZATION, TENANT, Stores

from noetl_contracts.ids import TenantId
from noetl_contracts.requests.webhooks import SignatureScope, Webhook

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
HOOK = Webhook(
    **PLACE,
    name="orders",
    path="demo/a",
    version=2,
    credential="shop",
    inputs={"b": "{{ body.b }}", "a": [1, None]},
    body_bytes_max=10,
    signature=SignatureScope.BODY,
)


async def test_a_webhook_is_kept_replaced_and_removed(stores: Stores) -> None:
    assert await stores.webhooks.find_webhook("orders", **PLACE) is None
    await stores.webhooks.put_webhook(HOOK)
    assert await stores.webhooks.find_webhook("orders", **PLACE) == HOOK
    changed = structs.replace(HOOK, credential=None, is_enabled=False, version=None)
    await stores.webhooks.put_webhook(changed)
    assert await stores.webhooks.find_webhook("orders", **PLACE) == changed
    assert await stores.webhooks.remove_webhook("orders", **PLACE)
    assert not await stores.webhooks.remove_webhook("orders", **PLACE)


async def test_webhooks_are_listed_by_name_and_owner(stores: Stores) -> None:
    for name in ("b", "a"):
        await stores.webhooks.put_webhook(structs.replace(HOOK, name=name))
    await stores.webhooks.put_webhook(structs.replace(HOOK, tenant_id=TenantId("x")))
    listed = await stores.webhooks.list_webhooks(**PLACE, webhooks_max=9)
    assert [item.name for item in listed] == ["a", "b"]
    assert len(await stores.webhooks.list_webhooks(**PLACE, webhooks_max=1)) == 1
