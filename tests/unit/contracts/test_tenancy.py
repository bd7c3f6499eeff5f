"""Who has a share of a pool, and that shares never meet in a queue."""

from itertools import combinations

import pytest

from noetl_contracts import subjects
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.memory.broker import matches_pattern
from noetl_messaging.streams import topology

ORGANIZATION = OrganizationId("o")


def test_shares_are_read_with_their_weights() -> None:
    assert subjects.parse_tenant_shares([]) == {}
    assert subjects.parse_tenant_shares(["acme=2", "umbrella"]) == {"acme": 2, "umbrella": 1}


@pytest.mark.parametrize("entry", ["", "a b", "acme=0", "acme=x", "acme=1001", "a" * 65, "a.b"])
def test_what_is_no_share_is_refused_by_name(entry: str) -> None:
    with pytest.raises(subjects.SharesMalformed, match="is no share"):
        subjects.parse_tenant_shares([entry])
    with pytest.raises(subjects.SharesMalformed, match="each tenant once"):
        subjects.parse_tenant_shares(["acme", "acme=2"])


def test_every_command_is_in_exactly_one_queue() -> None:
    tenants = ["acme", "umbrella"]
    declared = [
        spec
        for spec in topology.declare_consumers(
            shard_count=1, pools=["default", "a-io"], tenants=tenants
        )
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
        subject = subjects.build_command_subject(
            pool, lane, TenantId(tenant_id), ORGANIZATION, is_own=is_own
        )
        takers = [
            spec.name
            for spec in declared
            if any(matches_pattern(item, subject) for item in spec.filters)
        ]
        assert takers == [topology.build_worker_consumer(pool, lane, tenant_id if is_own else None)]
        assert topology.find_pool(takers[0]) == (pool, lane)
        command_subject = subjects.parse_command_subject(subject)
        assert (command_subject.pool, command_subject.lane, command_subject.tenant_id) == (
            pool,
            lane,
            tenant_id,
        )
        assert command_subject.is_own == is_own
    for item, other in combinations(declared, 2):
        assert set(item.filters).isdisjoint(other.filters)
