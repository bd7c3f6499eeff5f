from datetime import UTC, datetime

import pytest
from tests.support.manual_clock import ManualClock

from noetl_chassis.identity import (
    ClockWentBackwards,
    SnowflakeIds,
    build_instance_name,
    read_minted_at_ms,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_identities_grow_and_never_repeat_within_one_millisecond() -> None:
    mint = SnowflakeIds(node=1, clock=ManualClock(NOON))
    minted = [int(mint.next_id()) for _ in range(10_000)]
    assert minted == sorted(set(minted))
    assert max(minted) < 2**63


def test_two_nodes_never_mint_the_same() -> None:
    clock = ManualClock(NOON)
    item, two = SnowflakeIds(node=1, clock=clock), SnowflakeIds(node=2, clock=clock)
    assert not {item.next_id() for _ in range(5000)} & {two.next_id() for _ in range(5000)}


def test_the_time_of_minting_can_be_read_back() -> None:
    identity = SnowflakeIds(node=1023, clock=ManualClock(NOON)).next_id()
    assert read_minted_at_ms(identity) == int(NOON.timestamp() * 1000)


def test_a_clock_that_goes_backwards_is_refused_until_it_has_caught_up() -> None:
    clock = ManualClock(NOON)
    mint = SnowflakeIds(node=1, clock=clock)
    first = int(mint.next_id())
    clock.set_back(5)
    with pytest.raises(ClockWentBackwards, match="5000 ms behind"):
        mint.next_id()
    clock.advance_by(5.001)
    assert int(mint.next_id()) > first


def test_borrowing_from_the_future_has_an_end() -> None:
    mint = SnowflakeIds(node=1, clock=ManualClock(NOON))
    minted = [mint.next_id() for _ in range(4096 * 101)]
    assert len(set(minted)) == len(minted)
    with pytest.raises(ClockWentBackwards, match="ahead of the clock"):
        [mint.next_id() for _ in range(4096)]


@pytest.mark.parametrize("node", [-1, 1024])
def test_a_node_number_out_of_range_is_refused(node: int) -> None:
    with pytest.raises(ValueError, match="0 to 1023"):
        SnowflakeIds(node=node, clock=ManualClock(NOON))


def test_instance_names_differ() -> None:
    assert build_instance_name("worker") != build_instance_name("worker")
