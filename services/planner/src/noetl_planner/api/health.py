"""Health and welcome routes of the API."""

from litestar import get
from msgspec import Struct

from noetl_planner.api.http.services import Services


class Welcome(Struct, frozen=True, kw_only=True):
    """The front door."""

    name: str = "NoETL planner"
    api: str = "/api"
    schema: str = "/schema"
    health: str = "/api/health"
    executions: str = "/api/executions"
    catalog: str = "/api/catalog"
    command_line: str = "noetl --help"


class HealthView(Struct, frozen=True, kw_only=True):
    """Whether the planner that answers is ready for work, and if not, why."""

    status: str
    problems: dict[str, str]


@get("/", tags=["planner"], sync_to_thread=False)
def welcome() -> Welcome:
    """Say what this is and where to go."""
    return Welcome()


@get("/api/health", tags=["planner"])
async def health(services: Services) -> HealthView:
    """Say whether this planner is well; that it answers at all means that it lives."""
    problems = await services.list_problems()
    if not services.access.grants:
        # What is wrong with which server is for those who may look.
        problems = dict.fromkeys(problems, "sign in to see why")
    return HealthView(status="degraded" if problems else "ok", problems=problems)


ROUTES = [welcome, health]
