"""What a registered playbook would do and what it needs; nothing is executed."""

import asyncio
from http import HTTPStatus
from typing import Annotated

from litestar import get
from litestar.params import FromPath, QueryParameter

from noetl_contracts import codec
from noetl_planner.http import (
    catalog_entries,
    problems,
)
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import Services
from noetl_playbook.model import Playbook
from noetl_playbook.outline import Outline, outline_of

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
    entry = await catalog_entries.find_playbook(services, path.removesuffix(_PLAN), version)
    playbook = codec.convert(entry.model, Playbook)
    # A large graph takes a while; the planner's loop must not wait for it.
    return await asyncio.to_thread(outline_of, playbook)


ROUTES = [show_plan]
