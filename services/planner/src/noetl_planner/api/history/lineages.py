"""Lineage of an execution, told from the ledger as OpenLineage's run events."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import CatalogId, ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.openlineage import RunEvent
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores, PlaybookServices
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_playbook import step_data
from noetl_playbook.model.playbook import Playbook
from noetl_replay.lineage import (
    LineageEvent,
    LineageState,
    Plan,
    build_lineage_events,
    is_lineage_event,
)

PAGE_VERSIONS = 5000
PAGE_EVENTS = 1000
EVENTS_MAX = 1000


class LineagePage(Struct, frozen=True, kw_only=True):
    """Run events in order; ask again with `next_after`, a version, while `has_more`."""

    execution_id: str
    events: list[RunEvent]
    next_after: int
    has_more: bool


@get("/executions/{execution_id:str}/lineage", tags=["results"])
async def list_lineage(
    services: Services,
    execution_id: FromPath[str],
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX)] = EVENTS_MAX,
) -> LineagePage:
    """Tell which step read and wrote what, as events of OpenLineage."""
    checked_id = ExecutionId(
        (await execution_lookup.get_execution_row(services, execution_id))["execution_id"]
    )
    head = await services.history.ledger.find_head(checked_id)
    end = 0 if head is None else head.version
    try:
        lineage_events, version = await _list_run_events(
            services, checked_id, after=after, end=end, events_max=limit
        )
    except (Permanent, LookupError, TypeError, ValueError) as failure:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="does_not_fold",
            detail=f"the history of execution {checked_id} cannot be read: {failure}",
            hint=f"see what was done to it: noetl audit verify {checked_id}",
        ) from failure
    return LineagePage(
        execution_id=checked_id,
        events=[lineage_event.event for lineage_event in lineage_events],
        next_after=version,
        has_more=version < end,
    )


async def _list_run_events(
    services: ApiServices, execution_id: ExecutionId, *, after: int, end: int, events_max: int
) -> tuple[list[LineageEvent], int]:
    """Tell what follows a version, and up to which version that is."""
    lineage = LineageState(execution_id=execution_id, **services.tenant_scope)
    plan: Plan = {}
    lineage_events: list[LineageEvent] = []
    async for envelope in _iterate_steps(services.history, execution_id, end):
        step_events = build_lineage_events(lineage, [envelope], plan)
        if not plan and lineage.catalog_id:
            plan = await _find_plan(services.playbooks, lineage.catalog_id)
        if envelope.stream_version > after:
            lineage_events += step_events
        if len(lineage_events) >= events_max:
            return lineage_events, envelope.stream_version
    return lineage_events, end


async def _iterate_steps(
    history: HistoryStores, execution_id: ExecutionId, end: int
) -> AsyncIterator[Envelope]:
    """Yield the events that matter, also of a history whose beginning has left the ledger."""
    version, is_whole = 0, True
    while version < end:
        until = min(version + PAGE_VERSIONS, end)
        page = await history.lineage.read_steps(
            execution_id, after_version=version, until_version=until
        )
        if version == 0:
            is_whole = bool(page) and page[0].stream_version == 1
        if not is_whole:
            page = await history.ledger.read_events(
                execution_id, after_version=version, events_max=min(PAGE_EVENTS, end - version)
            )
            until = page[-1].stream_version if page else end
        for envelope in page:
            if is_lineage_event(envelope):
                yield envelope
        version = until
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)


async def _find_plan(playbooks: PlaybookServices, catalog_id: CatalogId) -> Plan:
    try:
        entry = await playbooks.catalog.get_entry(catalog_id)
    except LookupError:
        return {}
    return step_data.list_step_data(codec.convert_value(entry.model, Playbook))


ROUTES = [list_lineage]
