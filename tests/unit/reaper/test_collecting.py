"""Of many owners each is looked at, whatever another's payloads hold."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.manual_clock import ManualClock

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_reaper.sweeps.payload_collection import PayloadCollection, SweepOutcome
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports.errors import PayloadCorrupt
from noetl_storage.ports.payload_ports import Owner, PayloadReferences

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWNERS = [Owner(tenant_id=TenantId(name), organization_id=OrganizationId("ops")) for name in "abc"]
NOTHING = SimpleNamespace(
    shelved=0, restored=0, purged=0, purged_bytes=0, removed=0, held_since=None
)


class ThreeOwners:
    """References of which only the owners are asked for."""

    async def list_owners(self) -> list[Owner]:
        return OWNERS


class Damaged:
    """Cannot look at the second owner's payloads."""

    def __init__(self) -> None:
        self.seen: list[Owner] = []

    async def sweep_owner(self, owner: Owner, **_rest: Any) -> SweepOutcome:
        self.seen.append(owner)
        if owner == OWNERS[1]:
            raise PayloadCorrupt("its digest is another")
        return cast("SweepOutcome", NOTHING)


async def test_a_damaged_payload_keeps_no_other_owners_from_being_collected() -> None:
    clock = ManualClock(NOON)
    collector = Damaged()
    collecting = PayloadCollection(
        collector,
        references=cast("PayloadReferences", ThreeOwners()),
        instances=MemoryInstances(MemoryStore(clock=clock)),
        owner="one",
        lease_s=60,
        clock=clock,
    )
    with pytest.raises(PayloadCorrupt):
        await collecting.sweep()
    assert collector.seen == OWNERS
