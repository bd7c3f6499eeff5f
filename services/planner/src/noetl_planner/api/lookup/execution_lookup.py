"""Where an execution stands, also in the moment before a projector has seen it."""

from datetime import datetime

from msgspec import structs

from noetl_contracts import spelling
from noetl_contracts.events.execution_events import PlaybookInitialized
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import views
from noetl_planner.api.lookup.views import Row
from noetl_planner.domain.decision.idempotency_keys import STARTED
from noetl_planner.identity.permissions import Permission
from noetl_replay import snapshot
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state, take_changes
from noetl_storage.ports import history_ports
from noetl_storage.ports.errors import HistoryDropped
from noetl_storage.ports.history_ports import HistoryPage

_ID_MAX = 2**63 - 1


def build_request_id(execution_id: ExecutionId) -> str:
    """Name the durable request that began an execution."""
    return f"execute-{execution_id}"


def check_execution_id(text: str) -> ExecutionId:
    """Admit what can name an execution; raises a 404 for anything else."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= _ID_MAX):
        raise problems.build_not_found_error(
            f"{text[:80]!r} is not an execution id: it is a number of up to 19 digits",
            hint="noetl ls lists them",
        )
    return ExecutionId(text)


def check_number(text: str, noun: str) -> str:
    """Admit an identity that is a number; raises a 400 for anything else."""
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _ID_MAX):
        raise problems.build_bad_request_error(
            f"{text[:80]!r} is not {noun}: it is a number of up to 19 digits"
        )
    return text


async def get_execution_row(services: ApiServices, text: str) -> Row:
    """Return an execution's row, or a stand-in while it is not projected; raises a 404."""
    execution_id = check_execution_id(text)
    rows = await services.history.projections.list_rows("execution", execution_id)
    owner = (services.tenant_id, services.organization_id)
    if rows and (rows[0]["tenant_id"], rows[0]["organization_id"]) == owner:
        services.check_path(rows[0]["path"], f"execution {execution_id}")
        return rows[0]
    if not rows:
        unprojected_row = await _find_unprojected_row(services, execution_id)
        if unprojected_row is not None:
            services.check_path(unprojected_row["path"], f"execution {execution_id}")
            return unprojected_row
    raise problems.build_not_found_error(
        f"there is no execution {execution_id}",
        hint="noetl ls lists them",
    )


async def get_version_time(
    services: ApiServices, execution_id: ExecutionId, version: int
) -> datetime:
    """Return when a version of a history happened; raises a 400 for one that is not there yet."""
    head = await services.history.ledger.find_head(execution_id)
    if head is None or version > head.version:
        raise problems.build_bad_request_error(
            f"execution {execution_id} has no version {version} yet",
            hint=f"its latest is {0 if head is None else head.version}",
        )
    (envelope,) = await services.history.ledger.read_events(
        execution_id, after_version=version - 1, events_max=1
    )
    return envelope.event_time


async def check_reach(services: ApiServices, execution_id: ExecutionId) -> None:
    """Raise a 404 for an execution of a playbook where the roles of who asks do not hold."""
    if services.path_prefixes:
        await get_execution_row(services, execution_id)


async def check_parent(services: ApiServices, text: str) -> None:
    """Raise a 404 for a parent that who asks may not see: its run would be shown as its child."""
    prefixes = services.path_prefixes and services.access.list_path_prefixes(Permission.SEE)
    try:
        await get_execution_row(structs.replace(services, path_prefixes=prefixes), text)
    except ApiError as error:
        raise problems.build_not_found_error(
            f"parent_execution_id: {error.detail}",
            hint="name an execution that you may see, or leave it out: noetl ls lists them",
        ) from error


def find_requested_execution(request: Request) -> ExecutionRequested | None:
    """Return what a durable request asks to run."""
    batch_facts = facts.decode_fact_batch(request.data).facts
    return next((fact for fact in batch_facts if isinstance(fact, ExecutionRequested)), None)


async def _find_unprojected_row(services: ApiServices, execution_id: ExecutionId) -> Row | None:
    owner = (services.tenant_id, services.organization_id)
    request = await services.messages.requests.find_request(build_request_id(execution_id))
    if request is not None:
        execution_requested = find_requested_execution(request)
        if (request.tenant_id, request.organization_id) != owner or execution_requested is None:
            return None
        return views.build_pending_row(
            execution_id, execution_requested.path, execution_requested.version
        )
    history = await services.history.ledger.read_events(execution_id, events_max=1)
    if not history or (history[0].tenant_id, history[0].organization_id) != owner:
        return None
    match history[0].event:
        case PlaybookInitialized(path=path, catalog_version=version):
            return views.build_pending_row(execution_id, path, version)
        case _:
            return None


_CHARACTERS_MAX = 200


async def check_step_name(
    services: ApiServices, execution_id: ExecutionId, *, path: str, version: int | None, step: str
) -> None:
    """Refuse a step that the playbook of an execution does not have; raises a 404.

    Nothing is said of an execution that has not begun, or whose playbook is not in the catalog.
    """
    if version is None:
        return
    entry = await services.playbooks.catalog.find_playbook(
        path, version=version, **services.tenant_scope
    )
    if entry is None:
        return
    names = [str(item["step"]) for item in entry.model.get("workflow", ())]
    if step in names:
        return
    raise problems.build_not_found_error(
        f"the playbook of execution {execution_id} has no step {step[:_CHARACTERS_MAX]!r}",
        hint=spelling.suggest_or_list(step, names, label="its steps are"),
    )


def get_correlation_id(state: ExecutionState) -> str:
    """Return the flow of an execution; it is its own where its request named none."""
    return state.correlation_id or str(state.execution_id)


async def find_parent_correlation_id(services: ApiServices, parent: str | None) -> str | None:
    """Return the flow of the execution that a request names as its parent, where there is one."""
    if parent is None:
        return None
    try:
        start = await services.history.ledger.find_by_key(
            ExecutionId(check_execution_id(parent)), STARTED
        )
    except HistoryDropped:
        return None
    owner = services.tenant_id, services.organization_id
    is_ours = start is not None and (start.tenant_id, start.organization_id) == owner
    if start is None or not is_ours:
        return None
    # The flow of a run out of reach is not told.
    path = start.event.path if isinstance(start.event, PlaybookInitialized) else ""
    return start.correlation_id if services.sees_path(path) else None


PAGE_EVENTS = 1000


async def fold_execution(services: ApiServices, execution_id: ExecutionId) -> ExecutionState:
    """Fold all that has happened, from the latest snapshot on."""
    remembered = snapshot.restore_state(
        await services.history.snapshots.find_snapshot(execution_id)
    )
    state = remembered or build_empty_state(execution_id, **services.tenant_scope)
    while True:
        page = await services.history.ledger.read_events(
            execution_id, after_version=state.version, events_max=PAGE_EVENTS
        )
        state = fold_history(state, page)
        take_changes(state)
        if len(page) < PAGE_EVENTS:
            return state


# Positions are 32 bits wide; a page beyond the largest position is empty.
_VERSION_MAX = 2**31 - 1


async def get_execution_page(
    services: ApiServices, text: str, *, skipped: int, size: int
) -> tuple[ExecutionId, HistoryPage, str | None]:
    """Return an execution, what to show of it, and why it has no events any more, if so.

    Raises a 404.
    """
    execution_id = check_execution_id(text)
    after = min(skipped, _VERSION_MAX)
    page = await services.history.pages.find_page(
        execution_id, **services.tenant_scope, after_version=after, events_max=size
    ) or await _view_unprojected(services, execution_id)
    services.check_path(page.path, f"execution {execution_id}")
    is_past_the_end = after >= page.version
    is_here = bool(page.events) and page.events[0].version == after + 1
    if is_past_the_end or is_here:
        return execution_id, page, None
    # Not projected yet, or all or the beginning of it has left the ledger.
    try:
        history = await services.history.ledger.read_events(
            execution_id, after_version=after, events_max=size
        )
    except HistoryDropped as failure:
        return execution_id, structs.replace(page, events=[]), str(failure)
    page_events = [history_ports.build_shown_event(envelope) for envelope in history]
    return execution_id, structs.replace(page, events=page_events), None


async def _view_unprojected(services: ApiServices, execution_id: ExecutionId) -> HistoryPage:
    """Stand in for an execution that no projector has seen; raises a 404."""
    row = await get_execution_row(services, execution_id)
    head = await services.history.ledger.find_head(execution_id)
    return HistoryPage(
        path=row["path"],
        status=row["status"],
        catalog_version=row.get("catalog_version"),
        parent_execution_id=row.get("parent_execution_id"),
        version=0 if head is None else head.version,
        events=[],
    )
