"""Which results led to a result: the chain of runs, from the latest one back."""

from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from noetl_contracts import locators
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import LineageLink, StoredLineageLink
from noetl_contracts.payloads import PayloadRef
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import Services
from noetl_planner.api.lookup import execution_lookup

LINKS_MAX = 1000


class TraceLink(Struct, frozen=True, kw_only=True):
    """One run of the chain; everything of a result is null while the run has none.

    `ref` locates the result of the run; `uri` and what follows are of a stored one.
    """

    step: str
    run_id: str
    status: str
    version: int
    ref_id: str | None
    parent_ref_id: str | None
    ref: str | None
    uri: str | None
    sha256: str | None
    media_type: str | None
    bytes: int | None
    row_count: int | None
    created_at: str | None


class Trace(Struct, frozen=True, kw_only=True):
    """The chain that led to the latest run of a step; `has_more` when it goes on.

    `source` says what it was read from: `ledger`, with every run, or `references`, the projection
    of stored results, when the ledger has the history no more.
    """

    execution_id: str
    step: str
    source: str
    links: list[TraceLink]
    has_more: bool


@get("/executions/{execution_id:str}/trace/{step:path}", tags=["results"])
async def show_trace(
    services: Services,
    execution_id: FromPath[str],
    step: FromPath[str],
    limit: Annotated[int, QueryParameter(ge=1, le=LINKS_MAX)] = 100,
) -> Trace:
    """Show the runs that led to the latest run of a step, the nearest first."""
    # A step may have any name, with slashes too; the path begins with the one before it.
    step = step.removeprefix("/")
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    lineage_links = await services.history.ledger.trace_runs(checked_id, step, links_max=limit + 1)
    if not lineage_links:
        stored_lineage_links = await services.history.projections.trace_results(
            checked_id, step, links_max=limit + 1
        )
        if stored_lineage_links:
            return Trace(
                execution_id=checked_id,
                step=step,
                source="references",
                links=[_view_kept_link(checked_id, link) for link in stored_lineage_links[:limit]],
                has_more=len(stored_lineage_links) > limit,
            )
        raise problems.build_not_found_error(
            f"step {step[:200]!r} of execution {checked_id} was not entered",
            hint=f"noetl status {checked_id} lists the steps that ran",
        )
    parents = [link.ref_id for link in lineage_links[1:]] + [None]
    links = [
        _view_link(checked_id, link, parent)
        for link, parent in zip(lineage_links, parents, strict=True)
    ]
    return Trace(
        execution_id=checked_id,
        step=step,
        source="ledger",
        links=links[:limit],
        has_more=len(lineage_links) > limit,
    )


def _view_link(
    execution_id: ExecutionId, link: LineageLink, parent_ref_id: str | None
) -> TraceLink:
    reference = link.result.reference if link.result is not None else None
    has_ended = link.ref_id is not None
    return TraceLink(
        step=link.step,
        run_id=link.run_id,
        status="running" if not has_ended else _name_link_status(is_error=link.is_error),
        version=link.entered_version,
        ref_id=link.ref_id,
        parent_ref_id=parent_ref_id,
        ref=locators.build_result_locator(execution_id, link.step, link.run_id)
        if has_ended
        else None,
        created_at=link.created_at.isoformat() if link.created_at is not None else None,
        **_view_reference(reference),
    )


def _view_kept_link(execution_id: ExecutionId, link: StoredLineageLink) -> TraceLink:
    return TraceLink(
        step=link.step,
        run_id=link.run_id,
        status=_name_link_status(is_error=link.is_error),
        version=link.entered_version,
        ref_id=link.ref_id,
        parent_ref_id=link.parent_ref_id,
        ref=locators.build_result_locator(execution_id, link.step, link.run_id),
        created_at=link.created_at.isoformat(),
        **_view_reference(link.reference),
    )


def _name_link_status(*, is_error: bool) -> str:
    return "error" if is_error else "ok"


def _view_reference(reference: PayloadRef | None) -> dict[str, Any]:
    """Say where stored content lies, and what it is."""
    return {
        "uri": reference.uri if reference is not None else None,
        "sha256": reference.sha256 if reference is not None else None,
        "media_type": reference.media_type if reference is not None else None,
        "bytes": reference.payload_bytes if reference is not None else None,
        "row_count": reference.row_count if reference is not None else None,
    }


ROUTES = [show_trace]
