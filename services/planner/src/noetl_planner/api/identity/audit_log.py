"""The administration log: what was done outside an execution, and what was refused."""

from datetime import datetime
from typing import Annotated, Any

from litestar import get
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.identity import administration
from noetl_contracts.identity.administration import AdministrationRecord, Outcome, RecordFilter
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import Services

RECORDS_MAX = 1000
_CHECKED_AT_ONCE = 1000

FilterText = Annotated[str | None, QueryParameter(max_length=256)]


class RecordView(Struct, frozen=True, kw_only=True):
    """A record of administration; its checksum covers it and the record before it."""

    version: int
    at: datetime
    action: str
    target: str
    outcome: str
    actor: dict[str, Any]
    details: dict[str, Any]
    checksum: str


class RecordPage(Struct, frozen=True, kw_only=True):
    """Records in order; ask again with `next_after` for those that come after them."""

    tenant: str
    organization: str
    records: list[RecordView]
    next_after: int


class StreamVerdict(Struct, frozen=True, kw_only=True):
    """Whether a stream of records is as it was sealed, and where it is not."""

    records: int
    version: int
    checksum: str
    is_whole: bool
    broken_at: int | None


@get("/audit", tags=["audit"])
async def list_records(
    services: Services,
    who: FilterText = None,
    what: FilterText = None,
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    outcome: FromQuery[Outcome | None] = None,
    after: Annotated[int | None, QueryParameter(ge=0, le=problems.NUMBER_MAX)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=RECORDS_MAX)] = 100,
) -> RecordPage:
    """List records: those after a version, or without one the latest; `what` may be a group.

    Records are from `since` on, and before `until`.
    """
    _check_zone("since", since)
    _check_zone("until", until)
    record_filter = RecordFilter(who=who, what=what, since=since, until=until, outcome=outcome)
    if after is None:
        records = await services.identity.administration.list_latest_records(
            record_filter, **services.tenant_scope, records_max=limit
        )
    else:
        records = await services.identity.administration.list_records(
            record_filter, **services.tenant_scope, after_version=after, records_max=limit
        )
    return RecordPage(
        tenant=services.tenant_id,
        organization=services.organization_id,
        records=[_view_record(record) for record in records],
        next_after=records[-1].version if records else after or 0,
    )


@get("/audit/check", tags=["audit"])
async def check_stream(services: Services) -> StreamVerdict:
    """Follow the chain of all records, and say whether each is as it was sealed."""
    version, checksum = 0, ""
    while page := await services.identity.administration.list_records(
        RecordFilter(),
        **services.tenant_scope,
        after_version=version,
        records_max=_CHECKED_AT_ONCE,
    ):
        broken = administration.find_broken_record(page, previous=checksum, version=version)
        if broken is not None:
            return StreamVerdict(
                records=broken.version,
                version=version,
                checksum=checksum,
                is_whole=False,
                broken_at=broken.version,
            )
        version, checksum = page[-1].version, page[-1].checksum
    return StreamVerdict(
        records=version, version=version, checksum=checksum, is_whole=True, broken_at=None
    )


def _check_zone(name: str, moment: datetime | None) -> None:
    """Raise a 400 for a moment without a time zone."""
    if moment is not None and moment.tzinfo is None:
        raise problems.build_bad_request_error(
            f"{name}={moment.isoformat()} has no time zone", hint=f"write {moment.isoformat()}Z"
        )


def _view_record(record: AdministrationRecord) -> RecordView:
    return RecordView(
        version=record.version,
        at=record.event_time,
        action=record.action,
        target=record.target,
        outcome=record.outcome,
        actor=codec.to_builtins(record.actor),
        details=record.details,
        checksum=record.checksum,
    )


ROUTES = [list_records, check_stream]
