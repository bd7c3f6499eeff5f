"""Audit API: heads of histories, and whether a history is as it was written."""

import asyncio
from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import HistoryHead
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import Text
from noetl_planner.api.http import problems
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_replay.audit.chain import ChainDamage, ChainExamination, ChainFinding
from noetl_storage.ports.errors import HistoryDropped
from noetl_storage.ports.payload_ports import Owner

PAGE_EVENTS = 1000
HEADS_MAX = 1000


class HeadPage(Struct, frozen=True, kw_only=True):
    """Where histories end, by execution id; ask again with `next_after` for more."""

    tenant_id: str
    organization_id: str
    heads: list[HistoryHead]
    next_after: str | None


class Verdict(Struct, frozen=True, kw_only=True):
    """What was found in one history; no finding means that it is as it was written.

    `dropped` says that its owner's policy has removed it: only where it ended can be compared.
    """

    execution_id: str
    events: int
    version: int
    checksum: str
    is_whole: bool
    findings: list[ChainFinding]
    dropped: str | None = None


@get("/audit/heads", tags=["audit"])
async def list_heads(
    services: Services,
    tenant_id: Text,
    organization_id: Text,
    after: Annotated[str | None, QueryParameter(max_length=20)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=HEADS_MAX)] = HEADS_MAX,
) -> HeadPage:
    """List where every history ends; kept elsewhere, the list shows what is changed later."""
    cuts.check_owner(services, tenant_id, organization_id)
    heads = await services.history.audit.list_histories(
        **services.tenant_scope,
        after=None if after is None else execution_lookup.check_execution_id(after),
        heads_max=limit,
    )
    return HeadPage(
        tenant_id=tenant_id,
        organization_id=organization_id,
        heads=heads,
        next_after=heads[-1].execution_id if len(heads) == limit else None,
    )


@get("/audit/executions/{execution_id:str}", tags=["audit"])
async def verify(
    services: Services,
    execution_id: FromPath[str],
    tenant_id: Text,
    organization_id: Text,
    version: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
    checksum: Annotated[str | None, QueryParameter(pattern="^[0-9a-f]{64}$")] = None,
) -> Verdict:
    """Follow the chain of one history, and compare it with a head that was exported before."""
    cuts.check_owner(services, tenant_id, organization_id)
    checked_id = execution_lookup.check_execution_id(execution_id)
    exported = _build_exported_head(checked_id, version, checksum)
    if await _has_another_owner(services, checked_id):
        raise _build_unknown_history_error(checked_id)
    await execution_lookup.check_reach(services, checked_id)
    examination = ChainExamination(exported=exported)
    try:
        head = await _examine_history(services.history, examination, checked_id)
    except HistoryDropped as failure:
        return _view_dropped(await services.history.ledger.find_head(checked_id), exported, failure)
    if not examination.events and head is None and exported is None:
        raise _build_unknown_history_error(checked_id)
    findings = examination.finish_examination(head)
    last = examination.last
    return Verdict(
        execution_id=checked_id,
        events=examination.events,
        version=0 if last is None else last.stream_version,
        checksum="" if last is None else last.envelope_checksum,
        is_whole=not findings,
        findings=findings,
    )


async def _examine_history(
    history: HistoryStores, examination: ChainExamination, execution_id: ExecutionId
) -> HistoryHead | None:
    """Feed a whole history to an examination; return where it ends.

    It may grow meanwhile. The head is read after the events, so that none can stand behind it that
    was appended since; and then what it counts and was not read yet.
    """
    fed_version = await _feed_events(history, examination, execution_id, after=0)
    head = await history.ledger.find_head(execution_id)
    if head is not None and head.version > fed_version:
        await _feed_events(
            history, examination, execution_id, after=fed_version, until=head.version
        )
    return head


async def _feed_events(
    history: HistoryStores,
    examination: ChainExamination,
    execution_id: ExecutionId,
    *,
    after: int,
    until: int | None = None,
) -> int:
    """Feed events to an examination, all or up to a version; return the last one's version."""
    while page := await history.audit.read_stored_events(
        execution_id,
        after_version=after,
        events_max=PAGE_EVENTS if until is None else max(0, min(PAGE_EVENTS, until - after)),
    ):
        examination.feed_events(page)
        after = page[-1].stream_version
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)
    return after


async def _has_another_owner(services: ApiServices, execution_id: ExecutionId) -> bool:
    """Tell whether a history is somebody else's; of one that lost its head its events say so."""
    owner = await services.history.audit.find_owner(execution_id)
    if owner is None:
        for first in await services.history.audit.read_stored_events(execution_id, events_max=1):
            owner = Owner(
                tenant_id=TenantId(first.tenant_id),
                organization_id=OrganizationId(first.organization_id),
            )
    return owner not in (None, Owner(**services.tenant_scope))


def _view_dropped(
    head: HistoryHead | None, exported: HistoryHead | None, failure: HistoryDropped
) -> Verdict:
    """Say of a history that is kept nowhere whether it ended where it was said to end."""
    assert head is not None, "a head outlives its events"
    findings = []
    if exported is not None and exported.version == head.version and exported != head:
        findings = [
            ChainFinding(
                damage=ChainDamage.HEAD,
                version=head.version,
                message="the ledger's head is not the one that was exported",
            )
        ]
    return Verdict(
        execution_id=head.execution_id,
        events=0,
        version=head.version,
        checksum=head.checksum,
        is_whole=not findings,
        findings=findings,
        dropped=str(failure),
    )


def _build_exported_head(
    execution_id: ExecutionId, version: int | None, checksum: str | None
) -> HistoryHead | None:
    if version is None and checksum is None:
        return None
    if version is None or checksum is None:
        raise problems.build_bad_request_error(
            "an exported head is a version and a checksum", hint="give both, or none"
        )
    return HistoryHead(execution_id=execution_id, version=version, checksum=checksum)


def _build_unknown_history_error(execution_id: ExecutionId) -> problems.ApiError:
    return problems.build_not_found_error(
        f"there is no history of an execution {execution_id}",
        hint="noetl audit heads lists them",
    )


ROUTES = [list_heads, verify]
