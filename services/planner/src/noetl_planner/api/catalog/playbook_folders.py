"""Registering the playbooks of a folder: all of them in one transaction, or none."""

from typing import Annotated, Any

from litestar import post
from litestar.params import FromQuery, JSONBody
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.ledger.records import CatalogEntry
from noetl_planner.api.catalog import catalog_entries, playbooks
from noetl_planner.api.catalog.playbooks import Registered
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_playbook.source.problems import Level

FILES_MAX = 2000


class FolderFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A playbook's text, and the name under which problems are reported."""

    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    content: str
    scripts: catalog_entries.Scripts | None = None


class FolderBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The playbooks of a folder."""

    files: Annotated[list[FolderFile], Meta(min_length=1, max_length=FILES_MAX)]


class RegisteredFile(Struct, frozen=True, kw_only=True):
    """What the playbooks of one file became, in order."""

    name: str
    playbooks: list[Registered]


class RegisteredFolder(Struct, frozen=True, kw_only=True):
    """What the playbooks of a folder became, file by file."""

    files: list[RegisteredFile]


@post("/catalog/register/folder", status_code=HTTP_200_OK, tags=["catalog"])
async def register_folder(
    services: Services, data: JSONBody[FolderBody], level: FromQuery[Level] = Level.TOLERANT
) -> RegisteredFolder:
    """Register the playbooks of a folder; with a problem in any file none is registered."""
    entries_by_name = await _read_files(services, data.files, level=level)
    new = [entry for entries in entries_by_name.values() for entry in entries]
    registered = iter(await playbooks.register_entries(services, new))
    return RegisteredFolder(
        files=[
            RegisteredFile(name=name, playbooks=[next(registered) for _ in entries])
            for name, entries in entries_by_name.items()
        ]
    )


async def _read_files(
    services: ApiServices, files: list[FolderFile], *, level: Level
) -> dict[str, list[CatalogEntry]]:
    """Make the entries of every file; raises one `ApiError` with the problems of all files."""
    entries_by_name: dict[str, list[CatalogEntry]] = {}
    diagnostics: list[dict[str, Any]] = []
    failures: list[tuple[str, ApiError]] = []
    for file in files:
        if file.name in entries_by_name:
            raise problems.build_bad_request_error(f"two files are named {file.name!r}")
        entries_by_name[file.name] = []
        try:
            entries_by_name[file.name] = await catalog_entries.read_entries(
                services, file.content, level=level, path=None, scripts=file.scripts
            )
        except ApiError as error:
            failures.append((file.name, error))
            faults = error.extra.get("diagnostics", [])
            diagnostics += [{**codec.to_builtins(item), "file": file.name} for item in faults]
    if failures:
        raise _build_folder_error(failures, diagnostics)
    _check_paths(entries_by_name)
    return entries_by_name


def _build_folder_error(
    failures: list[tuple[str, ApiError]], diagnostics: list[dict[str, Any]]
) -> ApiError:
    name, first = failures[0]
    others = f", and {len(failures) - 1} more files are refused" if len(failures) > 1 else ""
    return ApiError(
        first.status,
        code=first.code,
        detail=f"{name}: {first.detail}{others}; no playbook was registered",
        hint=first.hint,
        extra={"diagnostics": diagnostics},
    )


def _check_paths(entries_by_name: dict[str, list[CatalogEntry]]) -> None:
    """Refuse two files with one path: which of them would be the latest version is by chance."""
    name_by_path: dict[str, str] = {}
    for name, entries in entries_by_name.items():
        for entry in entries:
            earlier = name_by_path.setdefault(entry.path, name)
            if earlier != name:
                raise problems.build_bad_request_error(
                    f"{earlier} and {name} both have the path {entry.path!r}; "
                    "no playbook was registered",
                    hint="give each a path of its own",
                )


ROUTES = [register_folder]
