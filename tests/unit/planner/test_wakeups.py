"""Facts that were taken and not decided on come again at their instant, each once."""

from datetime import timedelta

from tests.support.planning import NOON

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.requests.facts import FactBatch, TimerDue
from noetl_planner.facts.wakeups import Wakeups
from noetl_replay import state

SECOND = timedelta(seconds=1)


def a_batch(key: str) -> FactBatch:
    return FactBatch(
        key=key,
        execution_id=ExecutionId("42"),
        tenant_id=TenantId("t"),
        organization_id=OrganizationId("o"),
        producer="planner",
        facts=[TimerDue()],
    )


def test_what_is_put_back_is_handed_over_once_and_not_before_its_instant() -> None:
    wakeups = Wakeups()
    first, second = a_batch("first"), a_batch("second")
    wakeups.put_back([second], NOON + 2 * SECOND)
    wakeups.put_back([first], NOON + SECOND)
    assert wakeups.compute_next_wakeup_s(NOON, at_most_s=9.0) == 1.0
    assert wakeups.take_due_facts(NOON) == []
    assert wakeups.take_due_facts(NOON + SECOND) == [first]
    assert wakeups.take_due_facts(NOON + 3 * SECOND) == [second]
    assert wakeups.take_due_facts(NOON + 9 * SECOND) == []
    assert wakeups.compute_next_wakeup_s(NOON, at_most_s=9.0) == 9.0


def test_what_is_put_back_stands_beside_the_wish_of_its_execution() -> None:
    wakeups = Wakeups()
    of_it = state.build_empty_state(ExecutionId("42"), TenantId("t"), OrganizationId("o"))
    wakeups.put_back([a_batch("gathered")], NOON)
    wakeups.set_wakeup(of_it, NOON + SECOND)
    assert [due_fact.key for due_fact in wakeups.take_due_facts(NOON)] == ["gathered"]
    assert [due_fact.key for due_fact in wakeups.take_due_facts(NOON + SECOND)] == ["timer/42/0"]
