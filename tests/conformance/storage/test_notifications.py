"""Notifications over every adapter: each end once for each rule, whoever looks."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conformance.storage.test_projections import command_row, execution_row, project
from tests.support.polling import eventually
from tests.support.storage import ORGANIZATION, TENANT, Stores, an_execution

from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.administration import NewRecord
from noetl_contracts.ids import ExecutionId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import InboxMessage, Request
from noetl_contracts.requests import notifications
from noetl_contracts.requests.notifications import (
    Cause,
    DueNotification,
    HeldNotification,
    NotificationRule,
    RuleTest,
)
from noetl_contracts.requests.quiet_hours import QuietHours

PLACE: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
# Behind the moment at which any rule of a test is put, whatever clock its store has.
ENDED = datetime(2100, 1, 1, tzinfo=UTC)
SINCE = ENDED - timedelta(days=1)


def a_rule(**fields: Any) -> NotificationRule:
    values: dict[str, Any] = {
        **PLACE,
        "name": "ops",
        "pattern": "*",
        "causes": (Cause.FAILED, Cause.RECOVERED),
        "playbook": "ops/mail",
    }
    return NotificationRule(**{**values, **fields})


async def end(
    stores: Stores, status: str, execution: ExecutionId | None = None, **fields: Any
) -> ExecutionId:
    execution = execution or an_execution()
    values = {
        "status": status,
        "path": "demo/a",
        "started_at": ENDED,
        "ended_at": ENDED,
        "error": {"kind": "validation", "message": "no rows"} if status == "FAILED" else None,
    }
    row = execution_row(execution, **{**values, **fields})
    await project(stores, execution, execution=[row])
    return execution


async def list_due(stores: Stores) -> list[DueNotification]:
    return await stores.notifications.list_due_notifications(since=SINCE, notifications_max=9)


def a_request(due: DueNotification) -> Request:
    return notifications.build_notification_request(
        due, execution_id=an_execution(), routes=IngestRoutes(shard_count=4), producer="test"
    )


async def test_a_rule_is_found_as_it_was_put_last(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule(pattern="demo/*"))
    rule = a_rule(
        causes=(Cause.RECOVERED,),
        longer_than_s=1.5,
        quiet=QuietHours(start="22:00", end="07:00", zone="Europe/Berlin", days=("fri", "sat")),
        urgent=(Cause.FAILED,),
    )
    await stores.notifications.put_rule(rule)
    assert await stores.notifications.find_rule("ops", **PLACE) == rule
    assert await stores.notifications.list_rules(rules_max=9, **PLACE) == [rule]
    assert await stores.notifications.remove_rule("ops", **PLACE)
    assert not await stores.notifications.remove_rule("ops", **PLACE)
    assert await stores.notifications.find_rule("ops", **PLACE) is None


async def test_a_failure_is_due_and_then_what_completes_after_it(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    first, failed, recovered, last = sorted((an_execution() for _ in range(4)), key=int)
    await end(stores, "COMPLETED", first)
    assert await list_due(stores) == []
    await end(stores, "FAILED", failed, ended_at=ENDED + timedelta(seconds=1))
    await end(stores, "COMPLETED", recovered, ended_at=ENDED + timedelta(seconds=2))
    await end(stores, "COMPLETED", last, ended_at=ENDED + timedelta(seconds=3))
    due = await list_due(stores)
    assert [(item.execution_id, item.cause) for item in due] == [
        (failed, Cause.FAILED),
        (recovered, Cause.RECOVERED),
    ]
    sent = notifications.build_workload(due[0])["notification"]
    assert (sent["error"], sent["path"], sent["rule"]) == ("validation: no rows", "demo/a", "ops")


def test_a_failure_of_user_code_is_told_with_its_class_and_line() -> None:
    error = {
        "kind": "transform",
        "message": "'missing'",
        "exception_type": "KeyError",
        "source": "python",
        "details": {"line": 2, "line_text": 'rows["missing"]'},
    }
    due = DueNotification(
        rule=a_rule(),
        rule_id=1,
        cause=Cause.FAILED,
        execution_id=an_execution(),
        path="demo/a",
        status="FAILED",
        started_at=ENDED,
        seen_at=ENDED,
        error=error,
    )
    told = notifications.build_workload(due)["notification"]["error"]
    assert told == "transform: KeyError: 'missing' (line 2: rows[\"missing\"])"


async def test_what_completed_before_the_failure_has_not_recovered(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    slow, quick = sorted((an_execution() for _ in range(2)), key=int)
    await end(stores, "COMPLETED", quick)
    await end(stores, "FAILED", slow, ended_at=ENDED + timedelta(seconds=1))
    assert [item.execution_id for item in await list_due(stores)] == [slow]


@pytest.mark.parametrize(
    ("rule", "execution"),
    [
        ({"pattern": "demo/b"}, {}),
        ({"pattern": "dem/*"}, {}),
        ({"pattern": "demo/a/*"}, {}),
        # No sign of a pattern of SQL means anything.
        ({"pattern": "demo/_"}, {}),
        ({"pattern": "%/*"}, {}),
        ({"causes": (Cause.RECOVERED,)}, {}),
        ({"longer_than_s": 0.5}, {}),
        ({"tenant_id": TenantId("other")}, {}),
        ({}, {"parent_execution_id": "7"}),
        ({}, {"status": "CANCELLED"}),
        ({}, {"status": "RUNNING", "ended_at": None}),
        ({}, {"ended_at": SINCE - timedelta(seconds=1)}),
    ],
)
async def test_what_no_rule_waits_for_is_not_due(
    stores: Stores, rule: dict[str, Any], execution: dict[str, Any]
) -> None:
    await stores.notifications.put_rule(a_rule(**rule))
    await end(stores, **{"status": "FAILED", **execution})
    assert await list_due(stores) == []


@pytest.mark.parametrize("pattern", ["demo/a", "demo/*", "*"])
async def test_a_path_is_covered_by_itself_its_folder_and_all(stores: Stores, pattern: str) -> None:
    await stores.notifications.put_rule(a_rule(pattern=pattern, longer_than_s=2.0))
    await end(stores, "FAILED", started_at=ENDED - timedelta(seconds=2))
    assert len(await list_due(stores)) == 1


async def test_what_ended_before_a_rule_was_put_is_not_due(stores: Stores) -> None:
    past = datetime(2001, 1, 1, tzinfo=UTC)
    await stores.notifications.put_rule(a_rule())
    await end(stores, "FAILED", ended_at=past, started_at=past)
    due = await stores.notifications.list_due_notifications(
        since=past - timedelta(days=1), notifications_max=9
    )
    assert due == []


async def test_of_two_that_send_at_once_one_does(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    failed = await end(stores, "FAILED")
    (due,) = await list_due(stores)
    sent = await asyncio.gather(
        *(stores.notifications.send_notification(due, a_request(due)) for _ in range(5))
    )
    assert sorted(sent) == [False] * 4 + [True]
    assert await list_due(stores) == []
    (logged,) = await stores.notifications.list_sent_notifications(notifications_max=9, **PLACE)
    assert (logged.rule, logged.execution_id, logged.status) == ("ops", failed, "PENDING")


async def test_each_rule_sends_for_itself(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    await stores.notifications.put_rule(a_rule(name="boss"))
    await end(stores, "FAILED")
    due = await list_due(stores)
    assert sorted(item.rule.name for item in due) == ["boss", "ops"]
    assert [
        await stores.notifications.send_notification(item, a_request(item)) for item in due
    ] == [
        True,
        True,
    ]


async def test_a_failed_delivery_notifies_nobody(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    await stores.notifications.put_rule(a_rule(name="boss"))
    await end(stores, "FAILED")
    for due in await list_due(stores):
        request = a_request(due)
        assert await stores.notifications.send_notification(due, request)
        row = execution_row(
            request.execution_id,
            status="FAILED",
            path="ops/mail",
            started_at=ENDED,
            ended_at=ENDED,
        )
        await project(stores, request.execution_id, execution=[row])
    assert await list_due(stores) == []
    sent = await stores.notifications.list_sent_notifications(notifications_max=9, **PLACE)
    assert [item.status for item in sent] == ["FAILED", "FAILED"]


def a_late_rule(**fields: Any) -> NotificationRule:
    return a_rule(**{"causes": (Cause.LATE,), "longer_than_s": 0.5, **fields})


async def begin(stores: Stores, *, ago_s: float = 0.0, **fields: Any) -> ExecutionId:
    begun = datetime.now(UTC) - timedelta(seconds=ago_s)
    return await end(stores, "RUNNING", **{"started_at": begun, "ended_at": None, **fields})


async def list_late(stores: Stores) -> list[DueNotification]:
    past = datetime(2001, 1, 1, tzinfo=UTC)
    return await stores.notifications.list_due_notifications(since=past, notifications_max=9)


async def await_late(stores: Stores) -> DueNotification:
    (due,) = await eventually(lambda: list_late(stores))
    return due


async def test_what_still_runs_after_its_deadline_is_due_once(stores: Stores) -> None:
    await stores.notifications.put_rule(a_late_rule())
    late = await begin(stores)
    due = await await_late(stores)
    assert (due.execution_id, due.cause, due.ended_at) == (late, Cause.LATE, None)
    told = notifications.build_workload(due)["notification"]
    assert (told["cause"], told["ended_at"], told["status"]) == ("late", None, "RUNNING")
    assert told["duration_s"] >= 0.5
    assert await stores.notifications.send_notification(due, a_request(due))
    assert await list_late(stores) == []


async def test_what_was_late_before_a_rule_was_put_is_not_due(stores: Stores) -> None:
    await stores.notifications.put_rule(a_late_rule())
    await begin(stores, ago_s=3600)
    assert await list_late(stores) == []


@pytest.mark.parametrize(
    ("rule", "execution"),
    [
        ({"pattern": "demo/b"}, {}),
        ({"causes": (Cause.FAILED,)}, {}),
        ({"tenant_id": TenantId("other")}, {}),
        ({"longer_than_s": 3600.0}, {}),
        ({}, {"parent_execution_id": "7"}),
    ],
)
async def test_who_is_late_without_a_rule_for_it_is_not_due(
    stores: Stores, rule: dict[str, Any], execution: dict[str, Any]
) -> None:
    await stores.notifications.put_rule(a_late_rule(**{"pattern": "demo/a", **rule}))
    await begin(stores, **execution)
    # Once another one is late, so would this one be.
    await stores.notifications.put_rule(a_late_rule(name="other", pattern="demo/late"))
    other = await begin(stores, path="demo/late")
    assert (await await_late(stores)).execution_id == other


async def test_what_failed_after_it_was_late_is_due_as_both(stores: Stores) -> None:
    await stores.notifications.put_rule(a_late_rule(causes=(Cause.FAILED, Cause.LATE)))
    late = await begin(stores)
    due = await await_late(stores)
    assert await stores.notifications.send_notification(due, a_request(due))
    row = execution_row(late, status="FAILED", path="demo/a", started_at=SINCE, ended_at=ENDED)
    await project(stores, late, old=1, new=2, execution=[row])
    assert [one.cause for one in await list_late(stores)] == [Cause.FAILED]


async def test_a_rule_that_is_gone_sends_nothing(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    await end(stores, "FAILED")
    (due,) = await list_due(stores)
    await stores.notifications.remove_rule("ops", **PLACE)
    assert not await stores.notifications.send_notification(due, a_request(due))


def a_waiting_rule(**fields: Any) -> NotificationRule:
    return a_rule(**{"causes": (Cause.WAITING,), **fields})


async def ask(
    stores: Stores, *, approvals: Sequence[str] = ("71",), ago_s: float = 0.0, **fields: Any
) -> ExecutionId:
    """Let an execution wait for approvals."""
    execution = an_execution()
    since = datetime.now(UTC) - timedelta(seconds=ago_s)
    commands = [
        command_row(
            execution,
            str(501 + place),
            status="PARKED",
            heard_at=since,
            wait={
                "wait": "message",
                "key": "sign/1",
                "task": "sign",
                "mode": "approval",
                "address": f"approval/{approval}",
                "timeout_s": 3600.0,
                "title": "Release?",
                "assignees": ["ops"],
                "options": ["approve", "reject"],
                "four_eyes": True,
            },
        )
        for place, approval in enumerate(approvals)
    ]
    row = execution_row(execution, **{"path": "demo/a", "started_at": since, **fields})
    await project(stores, execution, execution=[row], command=commands)
    return execution


async def decide(stores: Stores, approval: str) -> None:
    letter = InboxMessage(**PLACE, address=f"approval/{approval}", digest="d", data=b"{}")
    await stores.requests.keep_message(letter, open_wait="501/sign/1", is_single=True)


async def list_waiting(stores: Stores) -> list[DueNotification]:
    past = datetime(2001, 1, 1, tzinfo=UTC)
    return await stores.notifications.list_due_notifications(since=past, notifications_max=9)


async def test_each_approval_of_an_execution_is_due_once(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule())
    execution = await ask(stores, approvals=("71", "72"))
    due = await list_waiting(stores)
    assert [(one.execution_id, one.cause, one.subject) for one in due] == [
        (execution, Cause.WAITING, "71"),
        (execution, Cause.WAITING, "72"),
    ]
    assert len({a_request(one).idempotency_key for one in due}) == 2
    for one in due:
        assert await stores.notifications.send_notification(one, a_request(one))
        assert not await stores.notifications.send_notification(one, a_request(one))
    assert await list_waiting(stores) == []
    # A projection that is built anew shows the approvals again.
    rows = {
        surface: await stores.projections.list_rows(surface, execution)
        for surface in ("execution", "command")
    }
    await stores.projections.clear_execution(execution)
    await project(stores, execution, **rows)
    assert await list_waiting(stores) == []


async def test_who_may_decide_until_when_and_where_is_told(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule())
    execution = await ask(stores)
    (due,) = await list_waiting(stores)
    told = notifications.build_workload(due, console_url="https://noetl.example.org/")
    approval = told["notification"]["approval"]
    assert due.wait is not None
    assert due.wait.since is not None
    until = due.wait.since.astimezone(UTC) + timedelta(hours=1)
    assert approval["until"] == until.isoformat()
    assert (approval["id"], approval["step"], approval["title"]) == ("71", "fetch", "Release?")
    assert (approval["assignees"], approval["four_eyes"]) == (["ops"], True)
    assert approval["url"] == "https://noetl.example.org/approvals"
    assert approval["command"] == "noetl approve 71"
    assert told["notification"]["status"] == "RUNNING"
    assert told["notification"]["key"] == f"ops/{execution}/waiting/71"


async def test_an_approval_that_is_decided_before_it_is_listed_is_not_due(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule())
    await ask(stores)
    await decide(stores, "71")
    assert await list_waiting(stores) == []


async def test_an_approval_that_is_decided_before_it_is_sent_is_not_sent(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule())
    await ask(stores)
    (due,) = await list_waiting(stores)
    await decide(stores, "71")
    assert not await stores.notifications.send_notification(due, a_request(due))
    assert await stores.notifications.list_sent_notifications(notifications_max=9, **PLACE) == []


async def test_a_wait_that_ended_before_it_is_sent_is_not_sent(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule())
    execution = await ask(stores)
    (due,) = await list_waiting(stores)
    await project(
        stores, execution, old=1, new=2, command=[command_row(execution, status="COMPLETED")]
    )
    assert not await stores.notifications.send_notification(due, a_request(due))
    assert await list_waiting(stores) == []


async def test_an_approval_of_a_child_is_due(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule(pattern="demo/a"))
    child = await ask(stores, parent_execution_id="7")
    assert [one.execution_id for one in await list_waiting(stores)] == [child]


@pytest.mark.parametrize(
    ("rule", "execution"),
    [
        ({"pattern": "demo/b"}, {}),
        ({"causes": (Cause.FAILED,)}, {}),
        ({"tenant_id": TenantId("other")}, {}),
        ({"longer_than_s": 3600.0}, {}),
        ({}, {"ago_s": 3600.0}),
        ({}, {"ended_at": ENDED, "status": "CANCELLED"}),
    ],
)
async def test_an_approval_that_no_rule_waits_for_is_not_due(
    stores: Stores, rule: dict[str, Any], execution: dict[str, Any]
) -> None:
    await stores.notifications.put_rule(a_waiting_rule(**rule))
    await ask(stores, **execution)
    assert await list_waiting(stores) == []


def a_mark(since: datetime, step: str | None = None, run: str | None = None) -> dict[str, Any]:
    return {"step": step, "run_id": run, "since": since.isoformat(), "ended_at": None}


async def test_each_passed_deadline_is_due_once(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule(causes=(Cause.LATE,)))
    marks = [a_mark(ENDED), a_mark(ENDED + timedelta(seconds=1), "load", "9")]
    late = await end(stores, "RUNNING", ended_at=None, late=marks)
    due = await list_due(stores)
    assert [(one.execution_id, one.subject, one.late_step) for one in due] == [
        (late, "", None),
        (late, "9", "load"),
    ]
    told = notifications.build_workload(due[1])["notification"]
    assert told["late"] == {"since": "2100-01-01T00:00:01+00:00", "step": "load"}
    assert (told["cause"], told["key"]) == ("late", f"ops/{late}/late/9")
    for one in due:
        assert await stores.notifications.send_notification(one, a_request(one))
    assert await list_due(stores) == []


async def test_a_deadline_that_passed_is_due_even_after_the_end(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule(causes=(Cause.LATE,)))
    late = await end(stores, "COMPLETED", late=[a_mark(ENDED)], parent_execution_id="7")
    (due,) = await list_due(stores)
    assert (due.execution_id, due.ended_at, due.status) == (late, ENDED, "COMPLETED")


@pytest.mark.parametrize(
    ("rule", "since"),
    [
        ({"pattern": "demo/b"}, ENDED),
        ({"causes": (Cause.FAILED,)}, ENDED),
        ({"tenant_id": TenantId("other")}, ENDED),
        # A rule with seconds of its own waits for these.
        ({"longer_than_s": 7200.0}, ENDED),
        ({}, SINCE - timedelta(seconds=1)),
    ],
)
async def test_a_passed_deadline_that_no_rule_waits_for_is_not_due(
    stores: Stores, rule: dict[str, Any], since: datetime
) -> None:
    await stores.notifications.put_rule(a_rule(**{"causes": (Cause.LATE,), **rule}))
    await end(stores, "RUNNING", ended_at=None, late=[a_mark(since)])
    assert await list_due(stores) == []


async def test_what_runs_without_a_deadline_is_never_late_of_itself(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule(causes=(Cause.LATE,)))
    await begin(stores, ago_s=3600)
    await begin(stores)
    assert await list_late(stores) == []


async def hold(stores: Stores, due: DueNotification) -> bool:
    item = notifications.build_held_item(due)
    return await stores.notifications.hold_notification(due, item)


async def list_held(stores: Stores, notifications_max: int = 9) -> list[HeldNotification]:
    return await stores.notifications.list_held_notifications(notifications_max=notifications_max)


def a_held_request(held: Sequence[HeldNotification]) -> Request:
    return notifications.build_held_request(
        held, execution_id=an_execution(), routes=IngestRoutes(shard_count=4), producer="test"
    )


async def test_what_is_held_is_due_no_more_and_sent_together_once(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    executions = sorted((an_execution() for _ in range(2)), key=int)
    for execution in executions:
        await end(stores, "FAILED", execution)
        for due in await list_due(stores):
            assert await hold(stores, due)
            assert not await hold(stores, due)
    assert await list_due(stores) == []
    sent = await stores.notifications.list_sent_notifications(notifications_max=9, **PLACE)
    assert [(one.status, one.delivered_by) for one in sent] == [("HELD", None)] * 2
    held = await list_held(stores)
    assert [one.execution_id for one in held] == executions
    requests = [a_held_request(held) for _ in range(4)]
    outcomes = await asyncio.gather(
        *(stores.notifications.send_held_notifications(held, request) for request in requests)
    )
    assert sorted(outcomes) == [False] * 3 + [True]
    assert await list_held(stores) == []
    sent = await stores.notifications.list_sent_notifications(notifications_max=9, **PLACE)
    delivery = requests[outcomes.index(True)].execution_id
    assert [(one.status, one.delivered_by) for one in sent] == [("PENDING", delivery)] * 2


async def test_held_notifications_are_sent_whole_or_not_at_all(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    for _ in range(2):
        await end(stores, "FAILED")
    for due in await list_due(stores):
        assert await hold(stores, due)
    first, second = await list_held(stores)
    assert await stores.notifications.send_held_notifications([first], a_held_request([first]))
    both = [first, second]
    assert not await stores.notifications.send_held_notifications(both, a_held_request(both))
    assert [one.execution_id for one in await list_held(stores)] == [second.execution_id]


async def test_a_rule_that_holds_much_leaves_room_for_another(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    await stores.notifications.put_rule(a_rule(name="boss"))
    for _ in range(2):
        await end(stores, "FAILED")
    for due in await list_due(stores):
        assert await hold(stores, due)
    held = await list_held(stores, notifications_max=1)
    assert sorted(one.rule.name for one in held) == ["boss", "ops"]


@pytest.mark.parametrize(
    ("later", "has_recovered"),
    [((), False), (("COMPLETED",), True), (("COMPLETED", "FAILED"), False)],
)
async def test_what_has_recovered_since_is_said(
    stores: Stores, later: Sequence[str], *, has_recovered: bool
) -> None:
    await stores.notifications.put_rule(a_rule(causes=(Cause.FAILED,)))
    first, *others = sorted((an_execution() for _ in range(1 + len(later))), key=int)
    await end(stores, "FAILED", first)
    (due,) = await list_due(stores)
    assert await hold(stores, due)
    for execution, status in zip(others, later, strict=True):
        await end(stores, status, execution, ended_at=ENDED + timedelta(seconds=1))
    (held,) = await list_held(stores)
    told = notifications.build_held_workload([held])["notification"]
    assert (told["cause"], told["path"], told["key"]) == ("held", "*", f"ops/held/{first}/failed")
    (item,) = told["held"]
    assert (item["cause"], item["error"], item["status_now"], item["recovered"]) == (
        "failed",
        "validation: no rows",
        "FAILED",
        has_recovered,
    )


async def test_a_held_approval_that_was_decided_is_not_told(stores: Stores) -> None:
    await stores.notifications.put_rule(a_waiting_rule())
    await ask(stores, approvals=("71", "72"))
    for due in await list_waiting(stores):
        assert await hold(stores, due)
    both = await list_held(stores)
    await decide(stores, "71")
    assert not await stores.notifications.send_held_notifications(both, a_held_request(both))
    held = await list_held(stores)
    assert [one.subject for one in held] == ["72"]
    assert await stores.notifications.send_held_notifications(held, a_held_request(held))


async def test_what_a_rule_held_goes_with_it(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    await end(stores, "FAILED")
    (due,) = await list_due(stores)
    assert await hold(stores, due)
    held = await list_held(stores)
    await stores.notifications.remove_rule("ops", **PLACE)
    assert await list_held(stores) == []
    assert not await stores.notifications.send_held_notifications(held, a_held_request(held))
    (sent,) = await stores.notifications.list_sent_notifications(notifications_max=9, **PLACE)
    assert sent.status == "DROPPED"


async def record_rule(
    stores: Stores, action: str, name: str, execution: ExecutionId | None = None, **place: Any
) -> None:
    """Record what was done with a rule."""
    record = NewRecord(
        **{**PLACE, **place},
        event_time=ENDED,
        action=action,
        target=name,
        actor=Actor(kind=ActorKind.PERSON, id="p1", name="Ann"),
        details={} if execution is None else {"execution_id": execution},
    )
    await stores.administration.append_record(record)


async def test_the_latest_tests_of_each_rule_are_listed_with_what_became_of_them(
    stores: Stores,
) -> None:
    await stores.notifications.put_rule(a_rule())
    await stores.notifications.put_rule(a_rule(name="quiet"))
    await stores.notifications.put_rule(a_rule(name="untested"))
    failed = await end(stores, "FAILED")
    unseen, first, others = an_execution(), an_execution(), an_execution()
    for execution in (first, failed, unseen):
        await record_rule(stores, notifications.TESTED, "ops", execution)
    await record_rule(stores, notifications.TESTED, "quiet", first)
    await record_rule(stores, "notification.written", "quiet")
    await record_rule(stores, notifications.TESTED, "gone", first)
    await record_rule(stores, notifications.TESTED, "ops", others, tenant_id=TenantId("other"))
    tests = await stores.notifications.list_rule_tests(**PLACE, tests_max=2)
    assert {
        name: [(test.execution_id, test.status) for test in of_rule]
        for name, of_rule in tests.items()
    } == {"ops": [(unseen, None), (failed, "FAILED")], "quiet": [(first, None)]}
    newest: RuleTest = tests["ops"][0]
    assert (newest.actor.short_name, newest.sent_at) == ("Ann", ENDED)


async def test_tests_of_a_rule_that_was_removed_are_not_those_of_the_next(stores: Stores) -> None:
    await stores.notifications.put_rule(a_rule())
    await record_rule(stores, notifications.TESTED, "ops", an_execution())
    await record_rule(stores, notifications.REMOVED, "ops")
    assert await stores.notifications.list_rule_tests(**PLACE, tests_max=9) == {}
    later = an_execution()
    await record_rule(stores, notifications.TESTED, "ops", later)
    tests = await stores.notifications.list_rule_tests(**PLACE, tests_max=9)
    assert [test.execution_id for test in tests["ops"]] == [later]
