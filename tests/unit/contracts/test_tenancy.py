"""Who has a share of a pool, and that shares never meet in a queue."""

from itertools import combinations

import pytest

from noetl_contracts import subjects, tenancy
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging import topology
from noetl_messaging.memory.broker import matches

ORGANIZATION = OrganizationId("o")


def test_shares_are_read_with_their_weights() -> None:
    assert tenancy.parse([]) == {}
    assert tenancy.parse(["acme=2", "umbrella"]) == {"acme": 2, "umbrella": 1}


@pytest.mark.parametrize("entry", ["", "a b", "acme=0", "acme=x", "acme=1001", "a" * 65, "a.b"])
def test_what_is_no_share_is_refused_by_name(entry: str) -> None:
    with pytest.raises(tenancy.SharesMalformed, match="is no share"):
        tenancy.parse([entry])
    with pytest.raises(tenancy.SharesMalformed, match="each tenant once"):
        tenancy.parse(["acme", "acme=2"])


def test_every_command_is_in_exactly_one_queue() -> None:
    tenants = ["acme", "umbrella"]
    declared = [
        spec
        for spec in topology.consumers(shard_count=1, pools=["default", "a-io"], tenants=tenants)
        if spec.stream == topology.COMMANDS
    ]
    assert len({spec.name for spec in declared}) == len(declared)
    for pool, lane, tenant_id in (
        (pool, lane, tenant_id)
        for pool in ("default", "a-io")
        for lane in ("io", "io-high", "io-low", "spark")
        for tenant_id in (*tenants, "somebody")
    ):
        is_own = tenant_id in tenants
        subject = subjects.command(pool, lane, TenantId(tenant_id), ORGANIZATION, is_own=is_own)
        takers = [
            spec.name for spec in declared if any(matches(one, subject) for one in spec.filters)
        ]
        assert takers == [topology.worker_consumer(pool, lane, tenant_id if is_own else None)]
        assert topology.find_pool(takers[0]) == (pool, lane)
        told = subjects.parse_command(subject)
        assert (told.pool, told.lane, told.tenant_id) == (pool, lane, tenant_id)
        assert told.is_own == is_own
    for one, other in combinations(declared, 2):
        assert set(one.filters).isdisjoint(other.filters)
