"""Persist before emit: a result is stored, or small enough to travel, before it is reported."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from msgspec import structs

from noetl_chassis import identity
from noetl_chassis.failpoints import Point, reach
from noetl_contracts import codec, spread
from noetl_contracts.payloads import (
    EVENT_INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.plain import DEPTH_MAX, is_deeper
from noetl_contracts.spread import SPREAD_MEDIA_TYPE, Spread
from noetl_playbook import carried, kept
from noetl_playbook.model import Output
from noetl_playbook.results import LoopResult, PipelineResult, TaskResult
from noetl_playbook.views import CARRIERS
from noetl_storage import encoding, envelopes
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.result import fields_beside
from noetl_worker.domain.storing import (
    FORMAT_FALLBACK,
    Storing,
    columns_of,
    length_of,
    preview_of,
    storing_of,
)
from noetl_worker.spooling import Spool
from noetl_worker.stores import TenantPayloads

# Objects of this name hold the content that they name.
PERMANENT = "permanent"
# The tools whose rows are values of JSON and nothing else.
_PLAIN_KINDS = frozenset({"python", "duckdb", "postgres"})
# The tools that leave rows in the store themselves; what others return is data of somebody's.
_SPREADERS = frozenset({"spark", "duckdb", "postgres"})


class Keeper:
    """Turns results into envelopes; `backend` names the deployment's store to playbooks."""

    def __init__(self, *, payloads: TenantPayloads, mask: Mask, backend: str = "memory") -> None:
        self._payloads = payloads
        self._mask = mask
        self._backend = backend

    async def keep(
        self,
        result: PipelineResult,
        *,
        status: str,
        output: Output | None = None,
        collected: Collection[str] = (),
        notes: tuple[str, ...] = (),
        is_read: bool = True,
    ) -> ResultEnvelope:
        """Keep a pipeline's result as `output` wants; raises `SelectionTooLarge`.

        What is `collected` under a name is no selection, however large it becomes. A result that
        nobody reads is not stored: what does not travel is left out.
        """
        how = storing_of(output, backend=self._backend)
        # Not canonical: the order of the tasks is part of the result.
        plain = codec.encode(result)
        data = self._mask.data(plain)
        if data is not plain:
            result = codec.decode_as(data, PipelineResult)
        rows = spread_of(result)
        if rows is not None:
            beside = fields_beside(result, collected)
            return await self._keep_spread(
                result, data, rows, how, beside, status=status, notes=notes
            )
        noted = {"notes": [*notes, *how.notes]} if notes or how.notes else {}
        if len(data) <= how.travel_bytes_max:
            travelling = carried.inline(result)
            if not is_deeper(travelling, DEPTH_MAX):
                return ResultEnvelope(status=status, context={**travelling, **noted})
        if not is_read:
            left_out = {**carried.inline(PipelineResult()), "is_left_out": True}
            return ResultEnvelope(status=status, context={**left_out, **noted})
        is_inline = len(data) <= how.inline_bytes_max
        content, media_type = data, JSON_MEDIA_TYPE
        format_ = how.format or ("arrow" if how.is_tabular_first and not is_inline else None)
        if format_ is not None:
            # Large tables would keep the event loop from its heartbeats.
            content, media_type = await asyncio.to_thread(_formed, result, data, format_)
        if content is data and how.format is not None:
            noted = {"notes": [*noted.get("notes", ()), FORMAT_FALLBACK]}
        reference = await self._stored(content, media_type, how, row_count=_row_count(result))
        await reach(Point.WORKER_PAYLOAD_WRITTEN)
        return ResultEnvelope(
            status=status,
            reference=reference,
            context={
                **carried.referenced(result, fields_beside(result, collected), is_inline=is_inline),
                **_described(result, how, is_inline=is_inline),
                **noted,
            },
        )

    async def keep_task(
        self, name: str, result: TaskResult, *, output: Output
    ) -> ResultEnvelope | None:
        """Keep the result of one task of a pipeline; None where the playbook sees it inline.

        Raises `SelectionTooLarge`.
        """
        kept_form = PipelineResult(tasks={name: result}, last=name)
        inline_max = storing_of(output, backend=self._backend).inline_bytes_max
        if spread_of(kept_form) is None and len(codec.encode(kept_form)) <= inline_max:
            return None
        found = await self.keep(kept_form, status="ok", output=output)
        return None if found.reference is None else found

    async def _keep_spread(
        self,
        result: PipelineResult,
        data: bytes,
        rows: Spread,
        how: Storing,
        beside: dict[str, Any],
        *,
        status: str,
        notes: tuple[str, ...],
    ) -> ResultEnvelope:
        """Keep a result whose rows are stored already: always by reference, as what names them."""
        stored = await self._payloads.store(
            data, media_type=SPREAD_MEDIA_TYPE, row_count=rows.row_count
        )
        await self._hold(stored, how)
        noted = [*notes, *how.notes]
        shown = spread.with_rows(codec.decode(data), str(result.last), rows.head)
        preview = preview_of(codec.convert(shown, PipelineResult), how.preview_bytes_max)
        return ResultEnvelope(
            status=status,
            # What a reader gets is the rows: their size is what limits are held against.
            reference=structs.replace(
                stored,
                payload_bytes=len(data) + rows.payload_bytes,
                schema_digest=codec.digest(rows.schema.encode()),
            ),
            context={
                **carried.referenced(result, beside),
                "store": how.backend,
                **how.about,
                **({"preview": preview} if preview else {}),
                "columns": rows.columns,
                **({"notes": noted} if noted else {}),
            },
        )

    async def keep_spooled(
        self,
        result: PipelineResult,
        spool: Spool,
        *,
        columns: list[str],
        row_count: int,
        output: Output | None = None,
        collected: Collection[str] = (),
        notes: tuple[str, ...] = (),
    ) -> ResultEnvelope:
        """Keep the result of a task whose rows are in a spool: always by reference, as JSON.

        Raises `SelectionTooLarge`.
        """
        how = storing_of(output, backend=self._backend)
        front = result.tasks[str(result.last)]
        place = identity.token()
        whole = structs.replace(front, raw={**front.raw, "rows": place})
        kept_form = structs.replace(result, tasks={**result.tasks, str(result.last): whole})
        data = self._mask.data(codec.encode(kept_form))
        head, _, tail = data.partition(codec.encode(place))
        is_table = front.kind not in CARRIERS
        reference = await self._payloads.store_pieces(
            lambda: spool.pieces(head + b"[", b"]" + tail),
            media_type=JSON_MEDIA_TYPE,
            row_count=row_count if is_table else None,
        )
        await self._hold(reference, how)
        noted = [*notes, *how.notes, *([FORMAT_FALLBACK] if how.format is not None else [])]
        return ResultEnvelope(
            status="ok",
            reference=reference,
            context={
                **carried.referenced(result, fields_beside(result, collected)),
                "store": how.backend,
                "columns": columns,
                **({"notes": noted} if noted else {}),
            },
        )

    async def keep_patch(self, patch: dict[str, Any]) -> dict[str, Any]:
        """Store what is large among writes to `ctx`, and return what stands for it."""
        if not patch:
            return patch
        values = dict(patch)
        for name in kept.too_large(patch, inline_max=EVENT_INLINE_BYTES_MAX):
            data = self._mask.data(codec.canonical(values[name]))
            count = len(values[name]) if isinstance(values[name], list) else None
            reference = await self._payloads.store(
                data, media_type=JSON_MEDIA_TYPE, row_count=count
            )
            values[name] = kept.marker(reference, values[name])
        return values

    async def _stored(
        self, content: bytes, media_type: str, how: Storing, *, row_count: int | None
    ) -> PayloadRef:
        """Store content, packed if that was asked for; the digest is that of what is stored."""
        packed = content
        if how.compression is not None:
            packed = await asyncio.to_thread(encoding.compress, content, how.compression)  # type: ignore[arg-type]  # the model knows both names
        reference = await self._payloads.store(
            packed,
            media_type=media_type,
            row_count=row_count,
            schema_digest=encoding.find_schema_digest(content),
        )
        await self._hold(reference, how)
        if packed is content:
            return reference
        return structs.replace(reference, payload_bytes=len(content), codec=how.compression)

    async def _hold(self, reference: PayloadRef, how: Storing) -> None:
        """Name what is to stay for good: what a named object says is never collected."""
        if how.is_permanent:
            name = f"{PERMANENT}/{reference.sha256}"
            await self._payloads.put_named(name, reference.sha256.encode())

    async def keep_list(self, results: list[Any]) -> ResultEnvelope:
        """Keep the results of a frame's rows."""
        kept = LoopResult(results=results)
        data = self._mask.data(codec.canonical(kept))
        return await envelopes.externalize(
            self._payloads.store,
            data,
            inline=lambda: carried.inline(codec.decode_as(data, LoopResult)),
            beside=carried.referenced(kept, {}),
            row_count=len(results),
        )

    async def keep_pieces(
        self, pieces: Callable[[], AsyncIterator[bytes]], *, row_count: int
    ) -> ResultEnvelope:
        """Keep a frame's results that are not in memory together.

        `pieces` yields them as masked JSON with commas in between, as often as it is called.
        """
        place = identity.token()
        whole = codec.canonical(LoopResult(results=[place]))
        head, _, tail = whole.partition(codec.canonical(place))

        async def all_of_it() -> AsyncIterator[bytes]:
            yield head
            async for piece in pieces():
                yield piece
            yield tail

        reference = await self._payloads.store_pieces(
            all_of_it, media_type=JSON_MEDIA_TYPE, row_count=row_count
        )
        return ResultEnvelope(
            status="ok", reference=reference, context=carried.referenced(LoopResult(), {})
        )


def spread_of(result: PipelineResult) -> Spread | None:
    """Return what stands for the rows of a result's last task, None when they are in it."""
    front = result.tasks.get(result.last or "")
    raw = front.raw if front is not None and front.kind in _SPREADERS else None
    if not isinstance(raw, dict) or not spread.is_marker(raw.get(spread.ROWS)):
        return None
    return codec.convert(raw[spread.ROWS][spread.KEY], Spread)


def _formed(result: PipelineResult, data: bytes, format_: str) -> tuple[bytes, str]:
    """Return what is stored and its media type: the very same JSON where there is no table."""
    table = None
    if _row_count(result) is not None:
        path = ("tasks", str(result.last), "raw")
        table = encoding.tabulate(_kept_form(result, data), path, format_=format_)  # type: ignore[arg-type]  # the model knows both names
    if table is None:
        return data, JSON_MEDIA_TYPE
    return table, encoding.media_type(format_)  # type: ignore[arg-type]  # as above


def _kept_form(result: PipelineResult, data: bytes) -> Any:
    """Return what `data` says, without its rows a second time where they are JSON's already."""
    last = str(result.last)
    front = result.tasks[last]
    if front.kind not in _PLAIN_KINDS:
        return codec.decode(data)
    bare = structs.replace(front, raw={**front.raw, "rows": []})
    kept_form = structs.replace(result, tasks={**result.tasks, last: bare})
    found = codec.decode(codec.encode(kept_form))
    found["tasks"][last]["raw"]["rows"] = front.raw["rows"]
    return found


def _described(result: PipelineResult, how: Storing, *, is_inline: bool) -> dict[str, Any]:
    """Say what templates may read of a stored result without loading it."""
    about: dict[str, Any] = {"store": how.backend, **how.about}
    preview = "" if is_inline else preview_of(result, how.preview_bytes_max)
    columns, length = columns_of(result), length_of(result)
    if preview:
        about["preview"] = preview
    if columns is not None:
        about["columns"] = columns
    if length is not None:
        about["length"] = length
    return about


def _row_count(result: PipelineResult) -> int | None:
    """Count the rows of a tabular result."""
    front = result.tasks.get(result.last or "")
    raw = front.raw if front is not None else None
    if isinstance(raw, dict) and isinstance(raw.get("rows"), list) and "columns" in raw:
        return len(raw["rows"])
    return None
