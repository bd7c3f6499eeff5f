"""What a playbook would do and what it needs, registered or not; nothing is executed or kept."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_planner.api.catalog import catalog_entries, playbooks
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import Services
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.outline import Outline, build_outline
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbooks
from noetl_playbook.source.problems import Level, Problem
from noetl_playbook.source.yaml_document import DOCUMENT_BYTES_MAX

_PLAN = "/plan"
PROBLEMS_MAX = 500


class DraftBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, and how strictly it is judged."""

    content: Annotated[str, Meta(max_length=DOCUMENT_BYTES_MAX)]
    level: Level = Level.TOLERANT


class DraftCheck(Struct, frozen=True, kw_only=True):
    """What `noetl lint` says of a text, and what its first playbook would do if it has no errors.

    `inputs` are its inputs with their defaults, `declared` what is said of them.
    """

    problems: list[Problem]
    plan: Outline | None
    path: str | None
    inputs: dict[str, Any] = {}
    declared: dict[str, Any] = {}


@get("/playbooks/{path:path}", tags=["catalog"])
async def show_plan(
    services: Services,
    path: FromPath[str],
    version: Annotated[
        int | None, QueryParameter(ge=-playbooks.VERSION_MAX, le=playbooks.VERSION_MAX)
    ] = None,
) -> Outline:
    """Show the plan of one version, the latest when none is named, at `…/{path}/plan`.

    Versions below zero are drafts.
    """
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


@post("/catalog/check", status_code=HTTP_200_OK, tags=["catalog"])
async def check_draft(data: JSONBody[DraftBody]) -> DraftCheck:
    """Check a text as `noetl lint` does; nothing is kept."""
    # A large document takes seconds to read; the planner's loop must not wait for it.
    return await asyncio.to_thread(_check_text, data.content, data.level)


def _check_text(text: str, level: Level) -> DraftCheck:
    parsed = parse_playbooks(text, level=level)
    problems = [problem for item in parsed for problem in item.problems]
    first: ParsedPlaybook | None = parsed[0] if parsed else None
    playbook = None if first is None else first.playbook
    is_whole = playbook is not None and not any(problem.is_error for problem in problems)
    return DraftCheck(
        problems=problems[:PROBLEMS_MAX],
        plan=build_outline(playbook) if is_whole and playbook is not None else None,
        path=None if playbook is None else playbook.metadata.path,
        inputs={} if playbook is None else codec.to_builtins(playbook.workload),
        declared={} if playbook is None else codec.to_builtins(playbook.declared_inputs),
    )


ROUTES = [show_plan, check_draft]
