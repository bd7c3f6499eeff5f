from noetl_worker.domain.lease_terms import Lease, compute_remaining_s, fit_lease


def test_a_command_gets_no_longer_lease_than_the_consumer_grants() -> None:
    lease = fit_lease(lease_s=120, heartbeat_s=30, ack_wait_s=30)
    assert lease == Lease(lease_s=30, heartbeat_s=10)


def test_a_shorter_wish_is_kept() -> None:
    lease = fit_lease(lease_s=6, heartbeat_s=1, ack_wait_s=30)
    assert lease == Lease(lease_s=6, heartbeat_s=1, spare_s=24)


def test_work_stops_a_fifth_of_the_lease_before_it_ends() -> None:
    held = Lease(lease_s=10, heartbeat_s=3)
    assert compute_remaining_s(held, confirmed_at=100, now=107) == 1
    assert compute_remaining_s(held, confirmed_at=100, now=108) == 0
