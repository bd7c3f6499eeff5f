"""Where a question about the past cuts a history: an event, a position or a time, as a version."""

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated

from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter, SkipValidation
from msgspec import Struct

from noetl_contracts.ids import EventId, ExecutionId
from noetl_contracts.ledger.records import HistoryHead
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import RequestScope, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_storage.ports.payload_ports import Owner

Text = Annotated[str, QueryParameter(min_length=1, max_length=200)]
History = NamedDependency[SkipValidation[HistoryHead]]
Version = NamedDependency[int]


class HistoryCut(Struct, frozen=True, kw_only=True):
    """What was asked for; nothing asked for is the end of the history."""

    event_id: str | None = None
    position: int | None = None
    time: datetime | None = None


async def get_history_head(
    services: Services, execution_id: FromQuery[str], tenant_id: Text, organization_id: Text
) -> HistoryHead:
    """Return where a history of this tenant and organization ends; raises a 404 for any other."""
    checked_id = execution_lookup.check_execution_id(execution_id)
    check_owner(services, tenant_id, organization_id)
    owner = await services.history.audit.find_owner(checked_id)
    is_ours = owner == Owner(**services.tenant_scope)
    # The first event says as well whether the history was dropped.
    first = (
        await services.history.audit.read_stored_events(checked_id, events_max=1) if is_ours else []
    )
    head = await services.history.ledger.find_head(checked_id) if first else None
    if head is None:
        raise problems.build_not_found_error(
            f"tenant {tenant_id[:80]!r}, organization {organization_id[:80]!r} has no history of "
            f"an execution {checked_id}",
            hint="noetl ls lists them",
        )
    await execution_lookup.check_reach(services, checked_id)
    return head


def check_owner(scope: RequestScope, tenant_id: str, organization_id: str) -> None:
    """Serve the tenant and organization that a request acts in alone; raises a 404.

    Whether there are others is not told: one that does not exist is answered in the same way.
    """
    if (tenant_id, organization_id) != (scope.tenant_id, scope.organization_id):
        raise problems.build_not_found_error(
            f"this request acts in tenant {scope.tenant_id!r}, organization "
            f"{scope.organization_id!r}, and asks about tenant {tenant_id[:80]!r}, organization "
            f"{organization_id[:80]!r}",
            hint="choose where to act: X-NoETL-Tenant and X-NoETL-Organization, or noetl context",
        )


async def resolve_cut(
    services: Services,
    history: History,
    as_of_event_id: FromQuery[str | None] = None,
    as_of_position: Annotated[
        int | None, QueryParameter(ge=-problems.NUMBER_MAX, le=problems.NUMBER_MAX)
    ] = None,
    as_of_time: FromQuery[datetime | None] = None,
) -> int:
    """Return the version that a request asks for, the latest when it asks for none."""
    cut = HistoryCut(event_id=as_of_event_id, position=as_of_position, time=as_of_time)
    return await get_version_at_cut(services.history, history, cut)


async def get_version_at_cut(history: HistoryStores, head: HistoryHead, cut: HistoryCut) -> int:
    """Resolve a cut to a version from 1 to the head's; raises a 400 or a 404 for any other."""
    names = [name for name, value in _list_named_cuts(cut).items() if value is not None]
    if len(names) > 1:
        raise problems.build_bad_request_error(
            f"the cut is given {len(names)} times: as {' and '.join(names)}",
            hint="give one of as_of_event_id, as_of_position and as_of_time",
        )
    if cut.event_id is not None:
        return await _get_version_at_event(history, head.execution_id, cut.event_id)
    if cut.time is not None:
        return await _get_version_at_time(history, head.execution_id, cut.time)
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


async def _get_version_at_event(
    history: HistoryStores, execution_id: ExecutionId, text: str
) -> int:
    event_id = EventId(execution_lookup.check_number(text, "an event id"))
    version = await history.audit.find_version_of(execution_id, event_id)
    if version is None:
        raise problems.build_not_found_error(
            f"execution {execution_id} has no event {event_id}",
            hint=f"noetl events {execution_id} lists them",
        )
    return version


async def _get_version_at_time(
    history: HistoryStores, execution_id: ExecutionId, at: datetime
) -> int:
    # A time without a zone means what the ledger's own times mean.
    instant = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    version = await history.audit.find_version_at(execution_id, instant)
    if version == 0:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            code="before_the_beginning",
            detail=f"execution {execution_id} had not begun at {instant.isoformat()}",
            hint="ask for a later time, or for as_of_position=1",
        )
    return version


def _list_named_cuts(cut: HistoryCut) -> dict[str, object]:
    return {
        "as_of_event_id": cut.event_id,
        "as_of_position": cut.position,
        "as_of_time": cut.time,
    }
