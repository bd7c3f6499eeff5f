"""Where a question about the past cuts a history: an event, a position or a time, as a version."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated

from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter, SkipValidation
from msgspec import Struct

from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Head
from noetl_planner.http import finding, problems
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices, Services
from noetl_storage.payload_ports import Owner

Text = Annotated[str, QueryParameter(min_length=1, max_length=200)]
History = NamedDependency[SkipValidation[Head]]
Version = NamedDependency[int]


class Cut(Struct, frozen=True, kw_only=True):
    """What was asked for; nothing asked for is the end of the history."""

    event_id: str | None = None
    position: int | None = None
    time: datetime | None = None


async def get_history(
    services: Services, execution_id: FromQuery[str], tenant_id: Text, organization_id: Text
) -> Head:
    """Return where a history of this tenant and organization ends; raises a 404 for any other."""
    known = finding.checked_id(execution_id)
    asked = Owner(tenant_id=TenantId(tenant_id), organization_id=OrganizationId(organization_id))
    is_ours = asked == Owner(**services.place) == await services.audit.find_owner(known)
    # The first event says as well whether the history was dropped.
    first = await services.audit.read_stored(known, events_max=1) if is_ours else []
    head = await services.ledger.find_head(known) if first else None
    if head is None:
        raise problems.not_found(
            f"tenant {tenant_id[:80]!r}, organization {organization_id[:80]!r} has no history of "
            f"an execution {known}",
            hint="noetl ls lists them",
        )
    return head


async def cut_at(
    services: Services,
    history: History,
    as_of_event_id: FromQuery[str | None] = None,
    as_of_position: Annotated[
        int | None, QueryParameter(ge=-problems.NUMBER_MAX, le=problems.NUMBER_MAX)
    ] = None,
    as_of_time: FromQuery[datetime | None] = None,
) -> int:
    """Return the version that a request asks for, the latest when it asks for none."""
    cut = Cut(event_id=as_of_event_id, position=as_of_position, time=as_of_time)
    return await version_of(services, history, cut)


async def version_of(services: ApiServices, head: Head, cut: Cut) -> int:
    """Resolve a cut to a version from 1 to the head's; raises a 400 or a 404 for any other."""
    asked = [name for name, value in _named(cut).items() if value is not None]
    if len(asked) > 1:
        raise problems.refused(
            f"the cut is given {len(asked)} times: as {' and '.join(asked)}",
            hint="give one of as_of_event_id, as_of_position and as_of_time",
        )
    if cut.event_id is not None:
        return await _at_event(services, head.execution_id, cut.event_id)
    if cut.time is not None:
        return await _at_time(services, head.execution_id, cut.time)
    if cut.position is None:
        return head.version
    if not 1 <= cut.position <= head.version:
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            code="no_such_position",
            detail=f"execution {head.execution_id} has no position {cut.position}",
            hint=f"its positions are 1 to {head.version}",
        )
    return cut.position


async def _at_event(services: ApiServices, execution_id: ExecutionId, text: str) -> int:
    event_id = EventId(finding.checked_number(text, "an event id"))
    version = await services.audit.find_version_of(execution_id, event_id)
    if version is None:
        raise problems.not_found(
            f"execution {execution_id} has no event {event_id}",
            hint=f"noetl events {execution_id} lists them",
        )
    return version


async def _at_time(services: ApiServices, execution_id: ExecutionId, at: datetime) -> int:
    # A time without a zone means what the ledger's own times mean.
    instant = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    version = await services.audit.find_version_at(execution_id, instant)
    if version == 0:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            code="before_the_beginning",
            detail=f"execution {execution_id} had not begun at {instant.isoformat()}",
            hint="ask for a later time, or for as_of_position=1",
        )
    return version


def _named(cut: Cut) -> dict[str, object]:
    return {
        "as_of_event_id": cut.event_id,
        "as_of_position": cut.position,
        "as_of_time": cut.time,
    }
