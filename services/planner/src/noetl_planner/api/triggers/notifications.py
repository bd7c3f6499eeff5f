"""Notifications: the rules, a test of one, and what was sent."""

from datetime import datetime
from typing import Annotated

from litestar import delete, get, post, put
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED
from msgspec import Meta, Struct, structs

from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.ids import CommandId, ExecutionId
from noetl_contracts.ledger.records import OpenWait
from noetl_contracts.requests import inbox, notifications, quiet_hours, workload_keys
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.notifications import (
    Cause,
    DueNotification,
    NotificationRule,
    RuleTest,
)
from noetl_contracts.requests.quiet_hours import BadQuietHours, QuietHours
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import views

RULES_MAX = 1000
SENT_MAX = 1000
TESTS_SHOWN = 5
_YEAR_S = 366 * 86_400
_TEST_ID = ExecutionId("0")
_SAMPLE_STATUS = {Cause.FAILED: "FAILED", Cause.RECOVERED: "COMPLETED"}


class RuleBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which ends of executions, late ones or open approvals start which playbook."""

    pattern: Annotated[str, Meta(min_length=1, max_length=512)]
    causes: Annotated[list[Cause], Meta(min_length=1, max_length=8)]
    playbook: Annotated[str, Meta(min_length=1, max_length=512)]
    longer_than_s: Annotated[float, Meta(ge=0, le=_YEAR_S)] = 0.0
    quiet: QuietHours | None = None
    urgent: Annotated[list[Cause], Meta(max_length=8)] = []


class RuleTestView(Struct, frozen=True, kw_only=True):
    """A test of a rule, by whom, and the status of the execution that it started.

    `status` is None where no table shows that execution, yet or any more.
    """

    execution_id: str
    status: str | None
    actor: str
    sent_at: datetime


class RuleView(Struct, frozen=True, kw_only=True):
    """A rule as people see it, and its latest tests, the latest first."""

    name: str
    pattern: str
    causes: list[Cause]
    longer_than_s: float
    playbook: str
    quiet: QuietHours | None = None
    urgent: list[Cause] = []
    suspended: str | None = None
    tests: list[RuleTestView] = []


class RuleList(Struct, frozen=True, kw_only=True):
    """The rules, by name."""

    rules: list[RuleView]


class SentView(Struct, frozen=True, kw_only=True):
    """A notification that was sent; `status` is that of the execution that delivers it.

    Of one that is `HELD` in quiet hours, or `DROPPED` with its rule, there is none.
    """

    rule: str
    cause: Cause
    path: str
    execution_id: str
    delivered_by: str | None
    status: str
    sent_at: datetime


class SentList(Struct, frozen=True, kw_only=True):
    """What was sent, the latest first."""

    notifications: list[SentView]


class Removed(Struct, frozen=True, kw_only=True):
    """A rule that is no more."""

    name: str
    removed: bool = True


@get("/notifications", tags=["notifications"])
async def list_rules(services: Services) -> RuleList:
    """List the rules, each with its latest tests."""
    rules = await services.registry.notifications.list_rules(
        rules_max=RULES_MAX, **services.tenant_scope
    )
    tests = await services.registry.notifications.list_rule_tests(
        tests_max=TESTS_SHOWN, **services.tenant_scope
    )
    return RuleList(
        rules=[
            structs.replace(
                await _view_author(services, rule),
                tests=[_view_test(test) for test in tests.get(rule.name, [])],
            )
            for rule in rules
        ]
    )


@get("/notifications/log", tags=["notifications"])
async def list_sent(
    services: Services, limit: Annotated[int, QueryParameter(ge=1, le=SENT_MAX)] = 100
) -> SentList:
    """List what was sent, the latest first."""
    sent = await services.registry.notifications.list_sent_notifications(
        notifications_max=limit, **services.tenant_scope
    )
    return SentList(
        notifications=[
            SentView(
                rule=item.rule,
                cause=item.cause,
                path=item.path,
                execution_id=item.execution_id,
                delivered_by=item.delivered_by,
                status=item.status,
                sent_at=item.sent_at,
            )
            for item in sent
        ]
    )


@put("/notifications/{name:str}", status_code=HTTP_200_OK, tags=["notifications"])
async def put_rule(services: Services, name: FromPath[str], data: JSONBody[RuleBody]) -> RuleView:
    """Keep a rule under a name, whether or not there was one."""
    problems.check_name(name, "a rule of notifications")
    if not notifications.is_pattern(data.pattern):
        raise problems.build_bad_request_error(
            f"{data.pattern[:128]!r} is no pattern of paths",
            hint="a playbook's path, a folder and /*, or * for all",
        )
    if data.quiet is not None:
        _check_quiet_hours(data.quiet)
    rule = NotificationRule(
        **services.tenant_scope,
        name=name,
        pattern=data.pattern,
        causes=tuple(sorted(set(data.causes))),
        longer_than_s=data.longer_than_s,
        playbook=data.playbook,
        actor=services.actor,
        quiet=data.quiet,
        urgent=tuple(sorted(set(data.urgent))),
    )
    entry = await catalog_entries.get_playbook_entry(services, rule.playbook, None)
    start_requests.check_requirements(services, entry)
    input_checks.check_inputs(entry, notifications.build_workload(_build_sample(services, rule)))
    input_checks.check_required_inputs(entry, {workload_keys.NOTIFICATION})
    async with services.record_change(
        "notification.written", name, pattern=rule.pattern, playbook=rule.playbook
    ):
        await services.registry.notifications.put_rule(rule)
    return _view_rule(rule)


@delete("/notifications/{name:str}", status_code=HTTP_200_OK, tags=["notifications"])
async def remove_rule(services: Services, name: FromPath[str]) -> Removed:
    """Remove a rule: nothing is sent by it from now on."""
    rule = await _get_rule(services, name)
    async with services.record_change(notifications.REMOVED, rule.name):
        await services.registry.notifications.remove_rule(rule.name, **services.tenant_scope)
    return Removed(name=rule.name)


@post("/notifications/{name:str}/test", status_code=HTTP_202_ACCEPTED, tags=["notifications"])
async def send_test(services: Services, name: FromPath[str]) -> views.Accepted:
    """Start a rule's playbook now, about an execution that never was, and record who did."""
    rule = await _get_rule(services, name)
    entry = await catalog_entries.get_playbook_entry(services, rule.playbook, None)
    start_requests.check_requirements(services, entry)
    fact = ExecutionRequested(
        path=entry.path,
        version=entry.version,
        workload=notifications.build_workload(_build_sample(services, rule)),
        requested_by=f"{notifications.ASKER}{rule.name}",
    )
    accepted = await start_requests.begin_execution(
        services, fact, entry, key=None, is_pinned=False
    )
    # It has begun: nothing is left to store besides the record.
    async with services.record_change(notifications.TESTED, rule.name) as details:
        details["execution_id"] = accepted.execution_id
    return accepted


def _check_quiet_hours(quiet: QuietHours) -> None:
    try:
        quiet_hours.check_quiet_hours(quiet)
    except BadQuietHours as error:
        raise problems.build_bad_request_error(
            str(error), hint="noetl notify put --quiet 22:00-07:00 --zone Europe/Berlin"
        ) from error


def _build_sample(services: ApiServices, rule: NotificationRule) -> DueNotification:
    now, cause = services.clock.now(), rule.causes[0]
    return DueNotification(
        rule=rule,
        rule_id=0,
        cause=cause,
        execution_id=_TEST_ID,
        path=rule.pattern,
        status=_SAMPLE_STATUS.get(cause, "RUNNING"),
        started_at=now,
        seen_at=now,
        ended_at=now if cause in _SAMPLE_STATUS else None,
        error="This is a test." if cause is Cause.FAILED else None,
        wait=_build_sample_wait(rule, now) if cause is Cause.WAITING else None,
        late_since=now if cause is Cause.LATE else None,
    )


def _build_sample_wait(rule: NotificationRule, now: datetime) -> OpenWait:
    return OpenWait(
        execution_id=_TEST_ID,
        tenant_id=rule.tenant_id,
        organization_id=rule.organization_id,
        command_id=CommandId("0"),
        step="test",
        wait=MessageWait(
            key="test",
            task="test",
            mode=inbox.APPROVAL,
            address=inbox.build_approval_address("0"),
            timeout_s=0.0,
            title="This is a test.",
        ),
        since=now,
    )


async def _get_rule(services: ApiServices, name: str) -> NotificationRule:
    rule = await services.registry.notifications.find_rule(name, **services.tenant_scope)
    if rule is None:
        raise problems.build_not_found_error(
            f"there is no rule {name[:128]!r} of notifications", hint="noetl notify ls"
        )
    return rule


async def _view_author(services: ApiServices, rule: NotificationRule) -> RuleView:
    """Show also why nothing is sent while the rule's author may not."""
    fault = await services.find_author_fault(rule.actor, None)
    return structs.replace(_view_rule(rule), suspended=fault)


def _view_test(test: RuleTest) -> RuleTestView:
    return RuleTestView(
        execution_id=test.execution_id,
        status=test.status,
        actor=test.actor.short_name,
        sent_at=test.sent_at,
    )


def _view_rule(rule: NotificationRule) -> RuleView:
    return RuleView(
        name=rule.name,
        pattern=rule.pattern,
        causes=list(rule.causes),
        longer_than_s=rule.longer_than_s,
        playbook=rule.playbook,
        quiet=rule.quiet,
        urgent=list(rule.urgent),
    )


ROUTES = [list_rules, list_sent, put_rule, remove_rule, send_test]
