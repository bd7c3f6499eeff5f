"""What the reaper shows of the backlog by tenant and stage: bounded, and old for nobody."""

from datetime import UTC, datetime

import pytest
from opentelemetry.metrics import CallbackOptions
from tests.support.manual_clock import ManualClock

from noetl_chassis.observability import instruments, names
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.records import LiveCommandCount
from noetl_reaper.sweeps.backlog_detail import (
    INTERVAL_S,
    OTHERS,
    TENANTS_MAX,
    BacklogDetail,
    count_places,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ACME, OPS = TenantId("acme"), OrganizationId("ops")


@pytest.fixture(autouse=True)
def no_earlier_values() -> None:
    """A process has one telemetry."""
    instruments.clear_gauge(names.BACKLOG_DETAIL)


def a_count(tenant: str, commands: int, *, kind: str = "loop") -> LiveCommandCount:
    return LiveCommandCount(
        tenant_id=TenantId(tenant),
        organization_id=OPS,
        stage_kind=kind,
        status="RUNNING",
        commands=commands,
    )


class KnownCounts:
    """Read models with these counts."""

    def __init__(self) -> None:
        self.counts: list[LiveCommandCount] = []
        self.looks = 0

    async def count_live_commands(self) -> list[LiveCommandCount]:
        self.looks += 1
        return self.counts


def list_shown() -> dict[tuple[str, str, str], float]:
    """Read what a scrape would be told, without the organization."""
    gauge = instruments._get_gauge(names.BACKLOG_DETAIL)  # a process has one telemetry
    shown = {}
    for value in gauge._observe_values(CallbackOptions()):
        labels = value.attributes or {}
        place = (str(labels["tenant"]), str(labels["stage_kind"]), str(labels["status"]))
        shown[place] = value.value
    return shown


async def test_a_count_that_is_gone_is_not_shown_and_the_own_tenant_is_zero() -> None:
    known, clock = KnownCounts(), ManualClock(NOON)
    detail = BacklogDetail(known, tenant_id=ACME, organization_id=OPS, clock=clock)
    known.counts = [a_count("acme", 3), a_count("beta", 4)]
    await detail.measure_backlog()
    shown = list_shown()
    assert shown["acme", "loop", "running"] == 3
    assert shown["beta", "loop", "running"] == 4
    assert shown["acme", "step", "waiting"] == 0
    known.counts = []
    await detail.measure_backlog()
    assert (known.looks, list_shown()) == (1, shown)
    clock.advance_by(INTERVAL_S)
    await detail.measure_backlog()
    assert set(list_shown().values()) == {0}
    assert {tenant for tenant, _, _ in list_shown()} == {"acme"}


def test_tenants_beyond_those_with_most_count_as_one() -> None:
    counts = [a_count(f"t{number}", number + 1) for number in range(TENANTS_MAX + 3)]
    places = count_places([*counts, a_count("t0", 5, kind="step")])
    tenants = {tenant for tenant, *_ in places}
    assert len(tenants) == TENANTS_MAX + 1
    assert sum(places.values()) == sum(count.commands for count in counts) + 5
    assert places[OTHERS, OTHERS, "loop", "running"] == 2 + 3 + 4
    assert "t0" in tenants
