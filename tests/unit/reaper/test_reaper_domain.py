from datetime import UTC, datetime, timedelta

import pytest

from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import OverdueCommand
from noetl_contracts.requests import facts
from noetl_reaper import domain
from noetl_reaper.domain import QueueState, ReaperPolicy, StalledExecution

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = ReaperPolicy(lease_s=30, grace_s=2, stalled_age_s=60, routes=IngestRoutes(shard_count=16))
X = ExecutionId("264905529753600000")
MARK = 100


def a_command(*, status: str = "RUNNING", attempt: int = 1) -> OverdueCommand:
    return OverdueCommand(
        execution_id=X,
        tenant_id=TenantId("acme"),
        organization_id=OrganizationId("west"),
        command_id="77",
        attempt=attempt,
        status=status,
        pool="default",
        lane="io",
    )


def a_queue(
    *,
    pending: int = 0,
    unsettled: int = 0,
    age_s: float = 3600,
    read_s: float | None = None,
    settled: int = 0,
) -> QueueState:
    return QueueState(
        pending=pending,
        unsettled=unsettled,
        settled_sequence=settled,
        stream_created_at=NOON - timedelta(seconds=age_s),
        last_delivered_at=None if read_s is None else NOON - timedelta(seconds=read_s),
    )


def is_suspect(
    command: OverdueCommand,
    commands: QueueState | None,
    *,
    facts: QueueState | None = None,
) -> bool:
    heard = facts or a_queue()
    return domain.is_suspect_command(
        command, facts=heard, commands=commands, mark=MARK, policy=POLICY, now=NOON
    )


def test_a_running_command_past_its_lease_is_suspect() -> None:
    assert is_suspect(a_command(), a_queue(pending=5))


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (a_queue(), True),
        (a_queue(pending=1), False),
        (a_queue(unsettled=1), False),
        (a_queue(unsettled=1, read_s=10), False),
        (a_queue(unsettled=1, read_s=1800), True),
        (a_queue(pending=1, read_s=1800), False),
        (a_queue(pending=1, age_s=10), True),
        (a_queue(pending=1, unsettled=1, read_s=0, settled=MARK - 1), False),
        (a_queue(pending=1, unsettled=1, read_s=0, settled=MARK), True),
        (None, False),
    ],
    ids=[
        "nothing waits",
        "behind others",
        "in somebody's hands",
        "handed over just now",
        "only others are in somebody's hands",
        "behind others, of a pool without workers",
        "stream made again",
        "in a busy queue, perhaps in somebody's hands",
        "in a busy queue, after all that were there",
        "no pool",
    ],
)
def test_a_command_that_nobody_began_is_lost_only_when_it_cannot_be_waiting(
    queue: QueueState | None, *, expected: bool
) -> None:
    assert is_suspect(a_command(status="ISSUED"), queue) is expected


@pytest.mark.parametrize(
    ("facts_queue", "expected"),
    [
        (a_queue(pending=3, read_s=20), False),
        (a_queue(pending=3), False),
        (a_queue(pending=3, read_s=1), True),
    ],
    ids=["planner is silent", "planner never read", "planner is busy"],
)
def test_nobody_is_suspect_while_signs_of_life_may_wait_unread(
    facts_queue: QueueState, *, expected: bool
) -> None:
    assert is_suspect(a_command(), a_queue(), facts=facts_queue) is expected


def test_a_suspect_is_lost_once_the_projection_has_caught_up_with_the_suspicion() -> None:
    command = a_command()
    suspected_at = {domain.build_suspect_key(command): 40}
    behind = domain.confirm_lost_commands(
        [command], suspected_at=suspected_at, position_by_execution={X: 39}
    )
    current = domain.confirm_lost_commands(
        [command], suspected_at=suspected_at, position_by_execution={X: 40}
    )
    assert (behind, current) == ([], [command])


def test_a_command_seen_for_the_first_time_is_not_yet_lost() -> None:
    known = {domain.build_suspect_key(a_command(attempt=1)): 1}
    fresh = domain.confirm_lost_commands(
        [a_command(attempt=2)], suspected_at=known, position_by_execution={X: 99}
    )
    assert fresh == []


def test_a_report_is_one_request_per_attempt() -> None:
    item, two = (domain.build_lost_request(a_command(attempt=n), POLICY) for n in (1, 2))
    assert item.idempotency_key == "lost/77/1"
    assert two.idempotency_key != item.idempotency_key
    assert item.subject == f"noetl.ingest.{ids.find_shard(X, 16)}.acme.west"
    batch = facts.decode_fact_batch(item.data)
    assert batch.request_id == item.request_id
    assert batch.facts == [
        facts.CommandLost(command_id=ids.CommandId("77"), attempt=1, reason="lease_expired")
    ]


def test_a_stalled_execution_is_nudged_once_per_period() -> None:
    stalled = StalledExecution(
        execution_id=X, tenant_id=TenantId("acme"), organization_id=OrganizationId("west")
    )
    keys = {
        domain.build_wake_request(stalled, POLICY, NOON + timedelta(seconds=s)).idempotency_key
        for s in (0, 30, 59, 60)
    }
    assert len(keys) == 2
