"""The catalog: register playbooks, list them, read any version."""

import asyncio
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger import CatalogEntry
from noetl_planner.http import foreseeing, problems, submission
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices, Services
from noetl_playbook import several
from noetl_playbook.parse import Parsed, parse_all
from noetl_playbook.problems import Level

PLAYBOOKS_MAX = 1000
VERSIONS_MAX = 100

Diagnostics = list[dict[str, Any]]


class RegisterBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A playbook's text inside JSON; `path` must agree with the text when it is given."""

    content: str
    path: str | None = None


class Registered(Struct, frozen=True, kw_only=True):
    """A version of a playbook that executions can name."""

    path: str
    version: int
    catalog_id: str
    digest: str
    diagnostics: Diagnostics
    # What further documents of the same text became, in order.
    others: list["Registered"] = []


class PlaybookSummary(Struct, frozen=True, kw_only=True):
    """The latest version of a playbook."""

    path: str
    name: str
    version: int
    catalog_id: str
    digest: str
    description: str | None
    created_at: datetime | None


class PlaybookList(Struct, frozen=True, kw_only=True):
    """The registered playbooks, by path."""

    playbooks: list[PlaybookSummary]


class PlaybookView(Struct, frozen=True, kw_only=True):
    """One version of a playbook; `versions` names the latest hundred."""

    path: str
    version: int
    versions: list[int]
    catalog_id: str
    digest: str
    source: str
    model: dict[str, Any]
    diagnostics: Diagnostics
    created_at: datetime | None


@post("/catalog/register", status_code=HTTP_200_OK, tags=["catalog"])
async def register(
    services: Services, request: Request[Any, Any, Any], level: FromQuery[Level] = Level.TOLERANT
) -> Registered:
    """Register a playbook: YAML as the body, or JSON with `content`."""
    source, path = _source(await request.body(), request.headers.get("content-type", ""))
    return await keep(services, source, level=level, path=path)


@get("/catalog", tags=["catalog"])
async def list_playbooks(
    services: Services,
    limit: Annotated[int, QueryParameter(ge=1, le=PLAYBOOKS_MAX)] = PLAYBOOKS_MAX,
) -> PlaybookList:
    """List the latest version of every playbook."""
    entries = await services.catalog.list_paths(entries_max=limit, **services.place)
    return PlaybookList(playbooks=[_summary(entry) for entry in entries])


@get("/catalog/{path:path}", tags=["catalog"])
async def show_playbook(
    services: Services,
    path: FromPath[str],
    version: Annotated[int | None, QueryParameter(ge=1)] = None,
) -> PlaybookView:
    """Show one version of a playbook, the latest when none is named."""
    entry = await submission.find_playbook(services, path, version)
    latest = entry
    if version is not None:
        latest = await submission.find_playbook(services, path, None)
    first = max(1, latest.version - VERSIONS_MAX + 1)
    return PlaybookView(
        path=entry.path,
        version=entry.version,
        versions=list(range(first, latest.version + 1)),
        catalog_id=entry.catalog_id,
        digest=entry.digest,
        source=entry.source,
        model=entry.model,
        diagnostics=entry.diagnostics,
        created_at=entry.created_at,
    )


async def keep(
    services: ApiServices, source: str, *, level: Level, path: str | None = None
) -> Registered:
    """Put every playbook of a text into the catalog, or none; raises `ApiError` with diagnostics.

    The answer is about the first one; `path`, when it is given, is that of the only one.
    """
    # A large document takes seconds to read; the planner's loop must not wait for it.
    found = await asyncio.to_thread(parse_all, source, level=level)
    entries = _entries(services, found, source=source, path=path)
    first, *others = [await _registered(services, entry) for entry in entries]
    return structs.replace(first, others=others)


async def _registered(services: ApiServices, new: CatalogEntry) -> Registered:
    entry = await services.catalog.register(new)
    return Registered(
        path=entry.path,
        version=entry.version,
        catalog_id=entry.catalog_id,
        digest=entry.digest,
        diagnostics=new.diagnostics,
    )


def _source(body: bytes, content_type: str) -> tuple[str, str | None]:
    try:
        if content_type.startswith("application/json"):
            asked = codec.decode_as(body, RegisterBody)
            return asked.content, asked.path
        return body.decode(), None
    except UnicodeDecodeError as failure:
        raise problems.refused(
            f"the playbook is not UTF-8: byte {failure.start} does not decode"
        ) from failure
    except msgspec.DecodeError as failure:
        raise problems.refused(
            f"the body is not JSON with a text in `content`: {failure}",
            hint="or send the YAML itself, as text/yaml",
        ) from failure


def _entries(
    services: ApiServices, found: tuple[Parsed, ...], *, source: str, path: str | None
) -> list[CatalogEntry]:
    """Make an entry of every document, each with its own part of the text."""
    problems_found = [problem for parsed in found for problem in parsed.problems]
    errors = sum(1 for problem in problems_found if problem.is_error)
    if errors or any(parsed.playbook is None for parsed in found):
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="playbook_invalid",
            detail=f"the playbook has {errors} error{'' if errors == 1 else 's'}",
            hint="noetl lint FILE shows them with their lines",
            extra={"diagnostics": codec.builtins(problems_found)},
        )
    if path is not None and len(found) > 1:
        raise problems.refused(
            f"the text holds {len(found)} playbooks, and the request names one path",
            hint="leave `path` out",
        )
    texts = several.cut(source, [parsed.begins for parsed in found])
    own = [parsed.playbook.metadata.path for parsed in found if parsed.playbook is not None]
    twice = next((one for one in own if own.count(one) > 1), None)
    if twice is not None:
        raise problems.refused(
            f"two playbooks of the text have the path {twice!r}",
            hint="give each a path of its own",
        )
    return [
        _entry(services, parsed, source=text, path=path)
        for parsed, text in zip(found, texts, strict=True)
    ]


def _entry(services: ApiServices, parsed: Parsed, *, source: str, path: str | None) -> CatalogEntry:
    assert parsed.playbook is not None, "bad playbooks are refused before"
    own = parsed.playbook.metadata.path
    if path is not None and path.strip("/") != own:
        raise problems.refused(
            f"the playbook says that its path is {own!r}, the request says {path!r}",
            hint="leave `path` out, or change metadata.path",
        )
    model: dict[str, Any] = codec.builtins(parsed.playbook)
    foreseen = foreseeing.warnings(model, services.pools, line=parsed.begins)
    return CatalogEntry(
        catalog_id=CatalogId(services.mint()),
        **services.place,
        path=own,
        # The catalog counts versions.
        version=0,
        digest=codec.digest(source.encode()),
        source=source,
        model=model,
        diagnostics=codec.builtins([*parsed.problems, *foreseen]),
        created_at=services.clock.now(),
    )


def _summary(entry: CatalogEntry) -> PlaybookSummary:
    metadata = entry.model.get("metadata", {})
    return PlaybookSummary(
        path=entry.path,
        name=metadata.get("name", entry.path),
        version=entry.version,
        catalog_id=entry.catalog_id,
        digest=entry.digest,
        description=metadata.get("description"),
        created_at=entry.created_at,
    )


ROUTES = [register, list_playbooks, show_playbook]
