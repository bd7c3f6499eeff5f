"""Where an execution stands, also in the moment before a projector has seen it."""

from noetl_contracts import facts
from noetl_contracts.events.execution import PlaybookInitialized
from noetl_contracts.facts import ExecutionRequested
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Request
from noetl_planner.http import problems, views
from noetl_planner.http.services import ApiServices
from noetl_planner.http.views import Row

_ID_MAX = 2**63 - 1


def request_id(execution_id: ExecutionId) -> str:
    """Name the durable request that began an execution."""
    return f"execute-{execution_id}"


def checked_id(text: str) -> ExecutionId:
    """Admit what can name an execution; raises a 404 for anything else."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= _ID_MAX):
        raise problems.not_found(
            f"{text[:80]!r} is not an execution id: it is a number of up to 19 digits",
            hint="noetl ls lists them",
        )
    return ExecutionId(text)


def checked_number(text: str, what: str) -> str:
    """Admit an identity that is a number; raises a 400 for anything else."""
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _ID_MAX):
        raise problems.refused(f"{text[:80]!r} is not {what}: it is a number of up to 19 digits")
    return text


async def get_row(services: ApiServices, text: str) -> Row:
    """Return an execution's row, or a stand-in while it is not projected; raises a 404."""
    execution_id = checked_id(text)
    rows = await services.projections.list_rows("execution", execution_id)
    owner = (services.tenant_id, services.organization_id)
    if rows and (rows[0]["tenant_id"], rows[0]["organization_id"]) == owner:
        return rows[0]
    if not rows:
        begun = await _find_unprojected(services, execution_id)
        if begun is not None:
            return begun
    raise problems.not_found(
        f"there is no execution {execution_id}",
        hint="noetl ls lists them",
    )


def asked_for(request: Request) -> ExecutionRequested | None:
    """Return what a durable request asks to run."""
    asked = facts.decode_batch(request.data).facts
    return next((fact for fact in asked if isinstance(fact, ExecutionRequested)), None)


async def _find_unprojected(services: ApiServices, execution_id: ExecutionId) -> Row | None:
    owner = (services.tenant_id, services.organization_id)
    request = await services.requests.find(request_id(execution_id))
    if request is not None:
        asked = asked_for(request)
        if (request.tenant_id, request.organization_id) != owner or asked is None:
            return None
        return views.pending_row(execution_id, asked.path, asked.version)
    history = await services.ledger.read(execution_id, events_max=1)
    if not history or (history[0].tenant_id, history[0].organization_id) != owner:
        return None
    match history[0].event:
        case PlaybookInitialized(path=path, catalog_version=version):
            return views.pending_row(execution_id, path, version)
        case _:
            return None
