"""Files that a run takes with it: their chunks are stored first, and named when it begins."""

from http import HTTPStatus
from typing import Annotated, Any

from litestar import Request, post
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec, locators
from noetl_contracts.execution_files import (
    CHUNK_HEAD,
    CHUNK_MEDIA_TYPE,
    CHUNKS_MAX,
    INLINE_CHUNKS_MAX,
    RUN,
    FileChange,
    FilePathError,
    JournalEntry,
    build_entry_name,
    normalize_file_path,
)
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, RequestScope, Services

FILES_MAX = 100
_CHECKS_AT_ONCE = 16

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class GivenFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file by its path in the execution; `chunks` are digests of stored chunks, in order."""

    path: Annotated[str, Meta(min_length=1)]
    size_bytes: Annotated[int, Meta(ge=0, le=2**53)]
    chunk_bytes: Annotated[int, Meta(ge=1, le=2**32)]
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=CHUNKS_MAX)]


class StoredChunk(Struct, frozen=True, kw_only=True):
    """A chunk that is stored; the digest names it."""

    digest: str


@post("/files/chunks", status_code=HTTP_200_OK, tags=["executions"])
async def take_chunk(services: Services, request: Request[Any, Any, Any]) -> StoredChunk:
    """Store a chunk of a file that a run will take with it: the bytes as the body."""
    await services.admission.quota_board.check_stored(services.tenant_id)
    return StoredChunk(digest=await store_chunk(services, await request.body()))


async def store_chunk(services: ApiServices, data: bytes) -> str:
    """Store a chunk of a file and return its digest."""
    ref = await services.payloads.put_payload(
        CHUNK_HEAD + data, media_type=CHUNK_MEDIA_TYPE, **services.tenant_scope
    )
    return ref.sha256


async def keep_run_files(
    services: ApiServices, execution_id: ExecutionId, given_files: list[GivenFile]
) -> str | None:
    """Write the first entry of an execution's files; return its digest, None without files.

    Raises a 400 for files that cannot lie beside each other, a 422 for one that is not stored.
    """
    if not given_files:
        return None
    _check_paths(given_files)
    await _check_chunks(services, given_files)
    changes = tuple([await _describe_file(services, file) for file in given_files])
    entry = JournalEntry(
        sequence=1, key="", writer=RUN, base=0, written_at=services.clock.now(), changes=changes
    )
    await services.payloads.put_named(
        build_entry_name(execution_id, 1), codec.encode_json(entry), **services.tenant_scope
    )
    return codec.compute_checksum(codec.to_builtins(given_files))


def _check_paths(given_files: list[GivenFile]) -> None:
    paths: set[str] = set()
    for file in given_files:
        try:
            path = normalize_file_path(file.path)
        except FilePathError as problem:
            raise problems.build_bad_request_error(
                f"file {file.path!r:.120} {problem}"
            ) from problem
        if path != file.path or path.startswith("/"):
            raise problems.build_bad_request_error(
                f"file {file.path!r:.120} is not named by a relative path in its shortest form"
            )
        if path in paths:
            raise problems.build_bad_request_error(f"file {path!r:.120} is given twice")
        paths.add(path)
        whole = sum(
            min(file.chunk_bytes, file.size_bytes - place) for place in _list_chunk_starts(file)
        )
        if whole != file.size_bytes or len(_list_chunk_starts(file)) != len(file.chunks):
            raise problems.build_bad_request_error(
                f"file {path!r:.120} has another size than its chunks"
            )
    for path in paths:
        folder = next((item for item in paths if path.startswith(f"{item}/")), None)
        if folder is not None:
            raise problems.build_bad_request_error(
                f"file {folder!r:.120} stands where {path!r:.120} has a folder"
            )


async def _check_chunks(services: ApiServices, given_files: list[GivenFile]) -> None:
    """Look for each chunk in the store, a few at a time; raises a 422 that names the file."""
    # A chunk that several files share is looked for once.
    place_by_digest = {
        digest: (file, index) for file in given_files for index, digest in enumerate(file.chunks)
    }
    waiting = iter(place_by_digest.values())
    missing: set[str] = set()

    async def take_turns() -> None:
        for file, index in waiting:
            ref = _chunk_ref(services, file, index)
            if not missing and not await services.payloads.has_payload(ref):
                missing.add(file.path)

    async with open_task_group() as group:
        for _ in range(_CHECKS_AT_ONCE):
            group.create_task(take_turns())
    if missing:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="file_not_stored",
            detail=f"file {min(missing)!r:.120} has chunks that are not stored",
            hint="store each chunk first, POST /api/files/chunks, and name the digests it returns",
        )


def _chunk_ref(scope: RequestScope, file: GivenFile, index: int) -> PayloadRef:
    size_bytes = min(file.chunk_bytes, file.size_bytes - index * file.chunk_bytes)
    digest = file.chunks[index]
    return PayloadRef(
        uri=locators.build_payload_locator(scope.tenant_id, scope.organization_id, digest),
        sha256=digest,
        media_type=CHUNK_MEDIA_TYPE,
        payload_bytes=size_bytes + len(CHUNK_HEAD),
    )


def _list_chunk_starts(file: GivenFile) -> range:
    """Return where the chunks of a file begin; of too many only as many as show that."""
    end = min(file.size_bytes, file.chunk_bytes * (CHUNKS_MAX + 1))
    return range(0, end, file.chunk_bytes)


async def _describe_file(services: ApiServices, file: GivenFile) -> FileChange:
    about: dict[str, Any] = {
        "path": file.path,
        "size_bytes": file.size_bytes,
        "chunk_bytes": file.chunk_bytes,
    }
    if len(file.chunks) <= INLINE_CHUNKS_MAX:
        return FileChange(**about, chunks=file.chunks)
    ref = await services.payloads.put_payload(
        codec.encode_json(file.chunks), media_type=JSON_MEDIA_TYPE, **services.tenant_scope
    )
    return FileChange(**about, chunks_ref=ref)


ROUTES = [take_chunk]
