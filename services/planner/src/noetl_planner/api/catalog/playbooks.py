"""The catalog: register playbooks, list them, read any version."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.ledger.records import CatalogEntry
from noetl_planner.api.catalog import catalog_entries, input_checks
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import ApiServices, Services
from noetl_playbook.source.problems import Level

PLAYBOOKS_MAX = 1000
VERSIONS_MAX = 100
# How many playbooks a record of administration lists of a folder that was registered.
RECORDED_MAX = 50
# Versions are whole numbers of 32 bits.
VERSION_MAX = 2**31 - 1

Diagnostics = list[dict[str, Any]]


class RegisterBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A playbook's text inside JSON; `path` must agree with the text when it is given.

    `scripts` are the texts of files beside it, by the names that it has for them.
    """

    content: str
    path: str | None = None
    scripts: catalog_entries.Scripts | None = None


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
    register_body = _decode_register_body(
        await request.body(), request.headers.get("content-type", "")
    )
    return await register_text(
        services,
        register_body.content,
        level=level,
        path=register_body.path,
        scripts=register_body.scripts,
    )


@get("/catalog", tags=["catalog"])
async def list_playbooks(
    services: Services,
    limit: Annotated[int, QueryParameter(ge=1, le=PLAYBOOKS_MAX)] = PLAYBOOKS_MAX,
) -> PlaybookList:
    """List the latest version of every playbook."""
    entries = await services.playbooks.catalog.list_playbooks(
        entries_max=limit, **services.tenant_scope
    )
    return PlaybookList(
        playbooks=[_view_summary(entry) for entry in entries if services.covers_path(entry.path)]
    )


@get("/catalog/{path:path}", tags=["catalog"])
async def show_playbook(
    services: Services,
    path: FromPath[str],
    version: Annotated[int | None, QueryParameter(ge=-VERSION_MAX, le=VERSION_MAX)] = None,
) -> PlaybookView:
    """Show one version of a playbook, the latest when none is named; drafts are below zero."""
    entry = await catalog_entries.get_playbook_entry(services, path, version)
    latest = entry if version is None else await catalog_entries.find_latest_entry(services, path)
    last = 0 if latest is None else latest.version
    first = max(1, last - VERSIONS_MAX + 1)
    return PlaybookView(
        path=entry.path,
        version=entry.version,
        versions=list(range(first, last + 1)),
        catalog_id=entry.catalog_id,
        digest=entry.digest,
        source=entry.source,
        model=entry.model,
        diagnostics=entry.diagnostics,
        created_at=entry.created_at,
    )


async def register_text(
    services: ApiServices,
    source: str,
    *,
    level: Level,
    path: str | None = None,
    scripts: catalog_entries.Scripts | None = None,
) -> Registered:
    """Put every playbook of a text into the catalog, or none; raises `ApiError` with diagnostics.

    The answer is about the first one; `path`, when it is given, is that of the only one.
    """
    entries = await catalog_entries.read_entries(
        services, source, level=level, path=path, scripts=scripts
    )
    first, *others = await register_entries(services, entries)
    return structs.replace(first, others=others)


async def register_entries(services: ApiServices, new: list[CatalogEntry]) -> list[Registered]:
    """Register playbooks of different paths, all of them or none; raises `ApiError`."""
    for entry in new:
        catalog_entries.check_write_permission(services, entry.path)
    await input_checks.check_playbook_calls(services, new)
    paths = ", ".join(entry.path for entry in new)
    async with services.record_change("playbook.registered", paths) as details:
        registered = await services.playbooks.catalog.register_batch(new)
        details["playbooks"] = [
            {"path": entry.path, "version": entry.version, "digest": entry.digest}
            for entry in registered[:RECORDED_MAX]
        ]
        details["count"] = len(registered)
    return [
        Registered(
            path=entry.path,
            version=entry.version,
            catalog_id=entry.catalog_id,
            digest=entry.digest,
            diagnostics=catalog_entry.diagnostics,
        )
        for catalog_entry, entry in zip(new, registered, strict=True)
    ]


def _decode_register_body(body: bytes, content_type: str) -> RegisterBody:
    try:
        if content_type.startswith("application/json"):
            return codec.decode_as(body, RegisterBody)
        return RegisterBody(content=body.decode())
    except UnicodeDecodeError as failure:
        raise problems.build_bad_request_error(
            f"the playbook is not UTF-8: byte {failure.start} does not decode"
        ) from failure
    except msgspec.DecodeError as failure:
        raise problems.build_bad_request_error(
            f"the body is not JSON with a text in `content`: {failure}",
            hint="or send the YAML itself, as text/yaml",
        ) from failure


def _view_summary(entry: CatalogEntry) -> PlaybookSummary:
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
