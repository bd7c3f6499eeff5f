"""What a registered playbook would do and what it needs; nothing is executed."""

import asyncio
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from noetl_contracts import codec
from noetl_planner.api.catalog import catalog_entries
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import Services
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.outline import Outline, build_outline

_PLAN = "/plan"


@get("/playbooks/{path:path}", tags=["catalog"])
async def show_plan(
    services: Services,
    path: FromPath[str],
    version: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
) -> Outline:
    """Show the plan of one version, the latest when none is named, at `…/{path}/plan`."""
    if not path.endswith(_PLAN):
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            code="not_found",
            detail=f"there is nothing at {path}",
            hint=f"/api/playbooks/{path.strip('/')}{_PLAN} is its plan",
        )
    entry = await catalog_entries.get_playbook_entry(services, path.removesuffix(_PLAN), version)
    playbook = codec.convert_value(entry.model, Playbook)
    # A large graph takes a while; the planner's loop must not wait for it.
    return await asyncio.to_thread(build_outline, playbook)


ROUTES = [show_plan]
