"""Holds and policies, in memory and on PostgreSQL alike."""

from tests.support.storage import ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts.ids import TenantId
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import RetentionAction

OWNER = Owner(tenant_id=TENANT, organization_id=ORGANIZATION)
OTHER = Owner(tenant_id=TenantId("another"), organization_id=ORGANIZATION)


async def test_a_hold_is_open_until_it_is_released(stores: Stores) -> None:
    holds, execution = stores.holds, an_execution()
    first = await holds.place_hold(OWNER, execution_id=execution, reason="case 7", who="ann")
    every = await holds.place_hold(OWNER, execution_id=None, reason="court", who="ann")
    again = await holds.place_hold(OWNER, execution_id=execution, reason="other", who="bob")
    assert again == first != every
    assert await holds.release_hold(OTHER, execution_id=None, reason="x", who="bob") is None
    assert await holds.release_hold(OWNER, execution_id=None, reason="over", who="bob") == every
    [still] = await holds.list_holds(OWNER, has_released=False, holds_max=9)
    assert (still.hold_id, still.execution_id, still.reason) == (first, execution, "case 7")
    latest, _ = await holds.list_holds(OWNER, has_released=True, holds_max=9)
    assert (latest.hold_id, latest.released_by, latest.release_reason) == (every, "bob", "over")
    assert await holds.list_holds(OWNER, has_released=True, holds_max=1) == [latest]
    assert await holds.list_holds(OTHER, has_released=True, holds_max=9) == []


async def test_an_owner_has_one_policy(stores: Stores) -> None:
    holds = stores.holds
    assert await holds.find_policy(OWNER) is None
    await holds.set_policy(OWNER, keep_days=30, action=RetentionAction.ARCHIVE, who="ann")
    await holds.set_policy(OWNER, keep_days=7, action=RetentionAction.DROP, who="bob")
    policy = await holds.find_policy(OWNER)
    assert policy is not None
    assert (policy.keep_days, policy.action, policy.set_by) == (7, RetentionAction.DROP, "bob")
    assert await holds.find_policy(OTHER) is None
    assert await holds.list_units(OWNER, units_max=9) == []
