"""Entries of the catalog: made from a text, found by path, kept as drafts."""

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta

from noetl_contracts import codec, spelling
from noetl_contracts.credentials import RESERVED_PATHS
from noetl_contracts.ids import CatalogId
from noetl_contracts.ledger.records import CatalogEntry
from noetl_planner.api.catalog import input_checks
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, RequestScope
from noetl_planner.api.pools import warnings
from noetl_planner.identity.permissions import Permission
from noetl_playbook.parse.playbook import ParsedPlaybook, parse_playbooks
from noetl_playbook.sections.script_files import ScriptFault
from noetl_playbook.source import yaml_document
from noetl_playbook.source.document_reader import ReadScript
from noetl_playbook.source.problems import Level

# Texts of files beside a playbook, by the names that it has for them.
Scripts = Annotated[dict[Annotated[str, Meta(max_length=1024)], str], Meta(max_length=100)]
SUGGESTIONS_MAX = 1000


async def read_entries(
    services: ApiServices,
    source: str,
    *,
    level: Level,
    path: str | None,
    scripts: Scripts | None = None,
) -> list[CatalogEntry]:
    """Make an entry of every playbook of a text; raises `ApiError` with diagnostics.

    `scripts` are the texts of the files that lie beside it. Without them, such files are those of
    the workers.
    """
    # A large document takes seconds to read; the planner's loop must not wait for it.
    parsed_playbooks = await asyncio.to_thread(
        parse_playbooks, source, level=level, read_script=_make_script_reader(scripts)
    )
    entries = _build_entries(services, parsed_playbooks, source=source, path=path)
    reserved_path = next((entry.path for entry in entries if entry.path in RESERVED_PATHS), None)
    if reserved_path is not None:
        raise problems.build_bad_request_error(
            f"path {reserved_path!r} is reserved", hint="change metadata.path"
        )
    return entries


async def keep_reserved_draft(services: ApiServices, source: str) -> CatalogEntry:
    """Keep a text of the API's own, with a reserved path, as a draft."""
    parsed_playbooks = await asyncio.to_thread(parse_playbooks, source, level=Level.TOLERANT)
    (entry,) = _build_entries(services, parsed_playbooks, source=source, path=None)
    return await services.playbooks.catalog.keep_draft(entry)


async def keep_draft(
    services: ApiServices, source: str, *, path: str | None, scripts: Scripts | None = None
) -> CatalogEntry:
    """Keep a text as a draft of its path, which no look-up by path alone finds."""
    entries = await read_entries(services, source, level=Level.TOLERANT, path=path, scripts=scripts)
    if len(entries) > 1:
        raise problems.build_bad_request_error(
            f"the text holds {len(entries)} playbooks, and a draft is one",
            hint="register the playbooks that it calls, and send its own document",
        )
    check_write_permission(services, entries[0].path)
    await input_checks.check_playbook_calls(services, entries)
    return await services.playbooks.catalog.keep_draft(entries[0])


def check_write_permission(scope: RequestScope, path: str) -> None:
    """Raise a 403 for who may not write the playbook of a path."""
    if not scope.has_permission(Permission.WRITE_PLAYBOOKS, path):
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            code="forbidden",
            detail=f"{scope.access.principal.name} may not write playbooks at {path!r}",
            hint="an administrator gives roles: noetl role grant",
        )


async def find_latest_entry(services: ApiServices, path: str) -> CatalogEntry | None:
    """Find the latest registered version of a path."""
    return await services.playbooks.catalog.find_playbook(path.strip("/"), **services.tenant_scope)


def _make_script_reader(scripts: Scripts | None) -> ReadScript | None:
    if scripts is None:
        return None

    def read_script(name: str) -> str:
        if name not in scripts:
            raise ScriptFault(
                f"script {name!r:.200} was not sent with the playbook",
                hint="send its text under this name in `scripts`",
            )
        return scripts[name]

    return read_script


def _build_entries(
    services: ApiServices,
    parsed_playbooks: tuple[ParsedPlaybook, ...],
    *,
    source: str,
    path: str | None,
) -> list[CatalogEntry]:
    """Make an entry of every document, each with its own part of the text."""
    problems_found = [problem for parsed in parsed_playbooks for problem in parsed.problems]
    errors = sum(1 for problem in problems_found if problem.is_error)
    if errors or any(parsed.playbook is None for parsed in parsed_playbooks):
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="playbook_invalid",
            detail=f"the playbook has {errors} error{'' if errors == 1 else 's'}",
            hint="noetl lint FILE shows them with their lines",
            extra={"diagnostics": codec.to_builtins(problems_found)},
        )
    if path is not None and len(parsed_playbooks) > 1:
        raise problems.build_bad_request_error(
            f"the text holds {len(parsed_playbooks)} playbooks, and the request names one path",
            hint="leave `path` out",
        )
    texts = yaml_document.split_documents(source, [parsed.begins for parsed in parsed_playbooks])
    paths = [
        parsed.playbook.metadata.path for parsed in parsed_playbooks if parsed.playbook is not None
    ]
    twice = next((item for item in paths if paths.count(item) > 1), None)
    if twice is not None:
        raise problems.build_bad_request_error(
            f"two playbooks of the text have the path {twice!r}",
            hint="give each a path of its own",
        )
    return [
        _build_entry(services, parsed, source=text, path=path)
        for parsed, text in zip(parsed_playbooks, texts, strict=True)
    ]


def _build_entry(
    services: ApiServices, parsed: ParsedPlaybook, *, source: str, path: str | None
) -> CatalogEntry:
    assert parsed.playbook is not None, "bad playbooks are refused before"
    own = parsed.playbook.metadata.path
    if path is not None and path.strip("/") != own:
        raise problems.build_bad_request_error(
            f"the playbook says that its path is {own!r}, the request says {path!r}",
            hint="leave `path` out, or change metadata.path",
        )
    model: dict[str, Any] = codec.to_builtins(parsed.playbook)
    foreseen = warnings.list_pool_warnings(model, services.pools, line=parsed.begins)
    return CatalogEntry(
        catalog_id=CatalogId(services.mint()),
        **services.tenant_scope,
        path=own,
        # The catalog counts versions.
        version=0,
        digest=codec.digest_hex(source.encode()),
        source=source,
        model=model,
        diagnostics=codec.to_builtins([*parsed.problems, *foreseen]),
        created_at=services.clock.now(),
    )


async def get_playbook_entry(services: ApiServices, path: str, version: int | None) -> CatalogEntry:
    """Return a registered version; raises a 404 that names what was probably meant."""
    playbook_path = path.strip("/")
    services.check_seen_path(playbook_path)
    entry = None
    if services.covers_path(playbook_path):
        entry = await services.playbooks.catalog.find_playbook(
            playbook_path, version=version, **services.tenant_scope
        )
    if entry is not None:
        services.playbooks.playbook_cache.keep_entry(version, entry)
        return entry
    latest = (
        await services.playbooks.catalog.find_playbook(playbook_path, **services.tenant_scope)
        if version is not None and services.covers_path(playbook_path)
        else None
    )
    if latest is not None:
        raise problems.build_not_found_error(
            f"playbook {playbook_path!r} has no version {version}",
            hint=f"its versions are 1 to {latest.version}",
        )
    catalog_entries = await services.playbooks.catalog.list_playbooks(
        entries_max=SUGGESTIONS_MAX, **services.tenant_scope
    )
    raise problems.build_not_found_error(
        f"no playbook is registered as {playbook_path!r}",
        hint=spelling.suggest_word(
            playbook_path,
            [entry.path for entry in catalog_entries if services.covers_path(entry.path)],
        )
        or "register it first: noetl register FILE",
    )
