"""A caller that proved who it is speaks for no other worker."""

import pytest

from noetl_planner.api.claims import leases


@pytest.mark.parametrize("worker_id", ["edge", "edge.1", "edge.a/b"])
def test_a_worker_speaks_for_itself(worker_id: str) -> None:
    assert leases.check_holder(worker_id, "edge") is None


@pytest.mark.parametrize("worker_id", ["other", "edges", "edge-1", "other.edge", "edge/1", "Edge"])
def test_a_worker_speaks_for_no_other(worker_id: str) -> None:
    refusal = leases.check_holder(worker_id, "edge")
    assert refusal is not None
    assert (refusal.status, refusal.code) == (403, "owner_mismatch")


def test_who_proved_nothing_takes_any_name() -> None:
    assert leases.check_holder("anybody", None) is None
