"""An execution and a page of its events: one query where all of it is in the ledger."""

from msgspec import structs

from noetl_contracts.ids import ExecutionId
from noetl_planner.http import finding
from noetl_planner.http.services import ApiServices
from noetl_storage import page_ports
from noetl_storage.errors import HistoryDropped
from noetl_storage.page_ports import HistoryPage

# Positions are 32 bits wide; whoever asks for a page beyond gets an empty one.
_VERSION_MAX = 2**31 - 1


async def get_page(
    services: ApiServices, text: str, *, skipped: int, size: int
) -> tuple[ExecutionId, HistoryPage, str | None]:
    """Return an execution, what to show of it, and why it has no events any more, if so.

    Raises a 404.
    """
    execution_id = finding.checked_id(text)
    after = min(skipped, _VERSION_MAX)
    page = await services.pages.find_page(
        execution_id, **services.place, after_version=after, events_max=size
    ) or await _begun(services, execution_id)
    is_past_the_end = after >= page.version
    is_here = bool(page.events) and page.events[0].version == after + 1
    if is_past_the_end or is_here:
        return execution_id, page, None
    # Not projected yet, or all or the beginning of it has left the ledger.
    try:
        history = await services.ledger.read(execution_id, after_version=after, events_max=size)
    except HistoryDropped as failure:
        return execution_id, structs.replace(page, events=[]), str(failure)
    shown = [page_ports.shown(envelope) for envelope in history]
    return execution_id, structs.replace(page, events=shown), None


async def _begun(services: ApiServices, execution_id: ExecutionId) -> HistoryPage:
    """Stand in for an execution that no projector has seen; raises a 404."""
    row = await finding.get_row(services, execution_id)
    head = await services.ledger.find_head(execution_id)
    return HistoryPage(
        path=row["path"],
        status=row["status"],
        catalog_version=row.get("catalog_version"),
        parent_execution_id=row.get("parent_execution_id"),
        version=0 if head is None else head.version,
        events=[],
    )
