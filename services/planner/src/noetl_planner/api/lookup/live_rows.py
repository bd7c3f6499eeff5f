"""The rows of the read models of an execution, all of one position, encoded and bounded in size."""

from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.moments.replay_folds import EncodedSurfaces, encode_row
from noetl_replay import rows

# As mappings rows take several times as much memory as encoded: so many are read at once.
PAGE_ROWS = 2000
_MOVES_MAX = 5


class LiveRows(Struct, frozen=True, kw_only=True):
    """Rows of some surfaces by key, as checksums cover them, at one version."""

    version: int
    rows_by_surface: EncodedSurfaces

    def show_rows(self) -> dict[str, Any]:
        """Return lists of rows in key order, which encode to what they are."""
        return {
            surface: [msgspec.Raw(row) for row in keyed.values()]
            for surface, keyed in self.rows_by_surface.items()
        }

    def compute_checksum(self) -> str:
        """Fingerprint the lists as `codec.compute_checksum` does, without decoding them."""
        digest = codec.start_digest()
        for piece in self._iterate_canonical():
            digest.update(piece)
        return digest.hexdigest()

    def _iterate_canonical(self) -> Iterator[bytes]:
        yield b"{"
        for place, surface in enumerate(sorted(self.rows_by_surface)):
            yield (b"," if place else b"") + codec.encode_canonical(surface) + b":["
            for index, row in enumerate(self.rows_by_surface[surface].values()):
                yield b"," + row if index else row
            yield b"]"
        yield b"}"


async def read_live_rows(
    services: ApiServices, execution_id: ExecutionId, surfaces: Sequence[str], *, bytes_max: int
) -> LiveRows:
    """Read rows until none of them moved meanwhile.

    Raises a 409 when they always do, and a 413 when they take more than so many bytes.
    """
    projections = services.history.projections
    for _ in range(_MOVES_MAX):
        before = await projections.list_positions([execution_id])
        rows_by_surface = await _read_surfaces(services, execution_id, surfaces, bytes_max)
        if before == await projections.list_positions([execution_id]):
            version = before.get(execution_id, 0)
            return LiveRows(version=version, rows_by_surface=rows_by_surface)
    raise ApiError(
        HTTPStatus.CONFLICT,
        code="moving",
        detail=f"execution {execution_id} moved on {_MOVES_MAX} times while it was read",
        hint="ask again, or pause it first: noetl pause",
    )


async def _read_surfaces(
    services: ApiServices, execution_id: ExecutionId, surfaces: Sequence[str], bytes_max: int
) -> EncodedSurfaces:
    rows_by_surface: EncodedSurfaces = {surface: {} for surface in surfaces}
    row_bytes = 0
    for surface, keyed in rows_by_surface.items():
        key_column, after = rows.KEY_BY_SURFACE[surface], None
        while True:
            page = await services.history.projections.list_rows(
                surface, execution_id, after=after, rows_max=PAGE_ROWS
            )
            for row in page:
                after = str(row[key_column])
                keyed[after] = encode_row(surface, row)
                row_bytes += len(keyed[after])
            if row_bytes > bytes_max:
                raise _build_too_large_error(rows_by_surface, bytes_max)
            if len(page) < PAGE_ROWS:
                break
    return rows_by_surface


def _build_too_large_error(rows_by_surface: EncodedSurfaces, bytes_max: int) -> ApiError:
    row_total = sum(map(len, rows_by_surface.values()))
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="replay_too_large",
        detail=f"{row_total} live rows and more are too many for one answer: "
        f"{bytes_max // 2**20} MiB",
        hint="ask for one projection, such as projection=execution, or read frames and commands "
        "page by page: /api/executions/ID/frames",
    )
