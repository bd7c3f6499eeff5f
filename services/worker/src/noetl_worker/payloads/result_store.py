"""Stores results before they are reported; small ones travel in the report."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING, Any

from msgspec import structs

from noetl_chassis import identity
from noetl_chassis.failpoints import Failpoint, pass_failpoint
from noetl_contracts import codec, spread_table
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.payloads import (
    EVENT_INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    PayloadRef,
    ResultEnvelope,
    is_packed,
)
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_playbook.model.playbook import Output
from noetl_playbook.views import ctx_references, result_envelope
from noetl_playbook.views.result_view import CARRIERS
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult
from noetl_storage.arrow import result_values
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.result import list_readable_fields
from noetl_worker.domain.result_storage import (
    FORMAT_FALLBACK,
    ResultStorage,
    build_preview,
    decide_storage,
    find_columns,
    find_list_length,
)
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.row_spool import RowSpool
from noetl_worker.payloads.tenant_payloads import TenantPayloads

if TYPE_CHECKING:
    from noetl_storage.arrow import encoding
else:
    encoding = LazyModule("noetl_storage.arrow.encoding")

# Objects of this name hold the content that they name.
PERMANENT = "permanent"
# The tools whose rows are values of JSON and nothing else.
_PLAIN_KINDS = frozenset({"python", "duckdb", "postgres"})
# The tools that leave rows in the store themselves; what others return is data of somebody's.
_SPREADERS = frozenset({"spark", "duckdb", "postgres"})


class ResultStore:
    """Turns results into envelopes; `backend` names the deployment's store to playbooks."""

    def __init__(
        self, *, payloads: TenantPayloads, mask: SecretMask, backend: str = "memory"
    ) -> None:
        self._payloads = payloads
        self._mask = mask
        self._backend = backend

    async def store_result(
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
        storage = decide_storage(output, backend=self._backend)
        # Not canonical: the order of the tasks is part of the result.
        plain = codec.encode_json(result)
        data = self._mask.mask_bytes(plain)
        if data is not plain:
            result = codec.decode_as(data, PipelineResult)
        rows = find_spread(result)
        if rows is not None:
            beside = list_readable_fields(result, collected)
            return await self._store_spread(
                result, data, rows, storage, beside, status=status, notes=notes
            )
        notes_field = {"notes": [*notes, *storage.notes]} if notes or storage.notes else {}
        if len(data) <= storage.travel_bytes_max:
            travelling = result_envelope.build_inline_context(result)
            if not is_nested_deeper(travelling, DEPTH_MAX):
                return ResultEnvelope(status=status, context={**travelling, **notes_field})
        if not is_read:
            left_out = {
                **result_envelope.build_inline_context(PipelineResult()),
                "is_left_out": True,
            }
            return ResultEnvelope(status=status, context={**left_out, **notes_field})
        is_inline = len(data) <= storage.inline_bytes_max
        content, media_type = data, JSON_MEDIA_TYPE
        format_ = storage.format or (
            "arrow" if storage.is_tabular_first and not is_inline else None
        )
        if format_ is not None:
            # Large tables would keep the event loop from its heartbeats.
            content, media_type = await asyncio.to_thread(_encode_content, result, data, format_)
        if content is data and storage.format is not None:
            notes_field = {"notes": [*notes_field.get("notes", ()), FORMAT_FALLBACK]}
        reference = await self._store_content(
            content, media_type, storage, row_count=_count_rows(result)
        )
        await pass_failpoint(Failpoint.WORKER_PAYLOAD_WRITTEN)
        return ResultEnvelope(
            status=status,
            reference=reference,
            context={
                **result_envelope.build_reference_context(
                    result, list_readable_fields(result, collected), is_inline=is_inline
                ),
                **_describe_result(result, storage, is_inline=is_inline),
                **notes_field,
            },
        )

    async def store_task_result(
        self, name: str, result: TaskResult, *, output: Output
    ) -> ResultEnvelope | None:
        """Keep the result of one task of a pipeline; None where the playbook sees it inline.

        Raises `SelectionTooLarge`.
        """
        kept_form = PipelineResult(tasks={name: result}, last=name)
        inline_max = decide_storage(output, backend=self._backend).inline_bytes_max
        if find_spread(kept_form) is None and len(codec.encode_json(kept_form)) <= inline_max:
            return None
        task_result = await self.store_result(kept_form, status="ok", output=output)
        return None if task_result.reference is None else task_result

    async def _store_spread(
        self,
        result: PipelineResult,
        data: bytes,
        rows: SpreadTable,
        storage: ResultStorage,
        beside: dict[str, Any],
        *,
        status: str,
        notes: tuple[str, ...],
    ) -> ResultEnvelope:
        """Keep a result whose rows are stored already: always by reference, as what names them."""
        reference = await self._payloads.store_payload(
            data, media_type=SPREAD_MEDIA_TYPE, row_count=rows.row_count
        )
        await self._pin_permanent(reference, storage)
        all_notes = [*notes, *storage.notes]
        head_result = spread_table.replace_marker(
            codec.decode_json(data), str(result.last), rows.head
        )
        preview = build_preview(
            codec.convert_value(head_result, PipelineResult), storage.preview_bytes_max
        )
        return ResultEnvelope(
            status=status,
            # What a reader gets is the rows: their size is what limits are held against.
            reference=structs.replace(
                reference,
                payload_bytes=len(data) + rows.payload_bytes,
                schema_digest=codec.digest_hex(rows.schema.encode()),
            ),
            context={
                **result_envelope.build_reference_context(result, beside),
                "store": storage.backend,
                **storage.about,
                **({"preview": preview} if preview else {}),
                "columns": rows.columns,
                **({"notes": all_notes} if all_notes else {}),
            },
        )

    async def store_spooled(
        self,
        result: PipelineResult,
        spool: RowSpool,
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
        storage = decide_storage(output, backend=self._backend)
        front = result.tasks[str(result.last)]
        place = identity.mint_token()
        task_result = structs.replace(front, raw={**front.raw, "rows": place})
        kept_form = structs.replace(result, tasks={**result.tasks, str(result.last): task_result})
        data = self._mask.mask_bytes(codec.encode_json(kept_form))
        head, _, tail = data.partition(codec.encode_json(place))
        is_table = front.kind not in CARRIERS
        reference = await self._payloads.store_pieces(
            lambda: spool.iterate_pieces(head + b"[", b"]" + tail),
            media_type=JSON_MEDIA_TYPE,
            row_count=row_count if is_table else None,
        )
        await self._pin_permanent(reference, storage)
        all_notes = [
            *notes,
            *storage.notes,
            *([FORMAT_FALLBACK] if storage.format is not None else []),
        ]
        return ResultEnvelope(
            status="ok",
            reference=reference,
            context={
                **result_envelope.build_reference_context(
                    result, list_readable_fields(result, collected)
                ),
                "store": storage.backend,
                "columns": columns,
                **({"notes": all_notes} if all_notes else {}),
            },
        )

    async def store_patch(self, patch: dict[str, Any]) -> dict[str, Any]:
        """Store what is large among writes to `ctx`, and return what stands for it."""
        if not patch:
            return patch
        values = dict(patch)
        for name in ctx_references.choose_large_values(patch, inline_max=EVENT_INLINE_BYTES_MAX):
            data = self._mask.mask_bytes(codec.encode_canonical(values[name]))
            count = len(values[name]) if isinstance(values[name], list) else None
            reference = await self._payloads.store_payload(
                data, media_type=JSON_MEDIA_TYPE, row_count=count
            )
            values[name] = ctx_references.build_marker(reference, values[name])
        return values

    async def _store_content(
        self, content: bytes, media_type: str, storage: ResultStorage, *, row_count: int | None
    ) -> PayloadRef:
        """Store content, packed if that was asked for; the digest is that of what is stored."""
        stored_content = content
        if storage.compression is not None:
            stored_content = await asyncio.to_thread(
                _compress_bytes,
                content,
                storage.compression,
            )
        reference = await self._payloads.store_payload(
            stored_content,
            media_type=media_type,
            row_count=row_count,
            schema_digest=encoding.find_schema_digest(content) if is_packed(content) else None,
        )
        await self._pin_permanent(reference, storage)
        if stored_content is content:
            return reference
        return structs.replace(reference, payload_bytes=len(content), codec=storage.compression)

    async def _pin_permanent(self, reference: PayloadRef, storage: ResultStorage) -> None:
        """Name what is to stay for good: what a named object says is never collected."""
        if storage.is_permanent:
            name = f"{PERMANENT}/{reference.sha256}"
            await self._payloads.put_named(name, reference.sha256.encode())

    async def store_row_results(self, results: list[Any]) -> ResultEnvelope:
        """Keep the results of a frame's rows."""
        loop_result = LoopResult(results=results)
        data = self._mask.mask_bytes(codec.encode_canonical(loop_result))
        return await result_values.build_result_envelope(
            self._payloads.store_payload,
            data,
            inline=lambda: result_envelope.build_inline_context(codec.decode_as(data, LoopResult)),
            beside=result_envelope.build_reference_context(loop_result, {}),
            row_count=len(results),
        )

    async def store_result_pieces(
        self, pieces: Callable[[], AsyncIterator[bytes]], *, row_count: int
    ) -> ResultEnvelope:
        """Keep a frame's results that are not in memory together.

        `pieces` yields them as masked JSON with commas in between, as often as it is called.
        """
        place = identity.mint_token()
        encoded_result = codec.encode_canonical(LoopResult(results=[place]))
        head, _, tail = encoded_result.partition(codec.encode_canonical(place))

        async def iterate_all_pieces() -> AsyncIterator[bytes]:
            yield head
            async for piece in pieces():
                yield piece
            yield tail

        reference = await self._payloads.store_pieces(
            iterate_all_pieces, media_type=JSON_MEDIA_TYPE, row_count=row_count
        )
        return ResultEnvelope(
            status="ok",
            reference=reference,
            context=result_envelope.build_reference_context(LoopResult(), {}),
        )


def find_spread(result: PipelineResult) -> SpreadTable | None:
    """Return what stands for the rows of a result's last task, None when they are in it."""
    front = result.tasks.get(result.last or "")
    raw = front.raw if front is not None and front.kind in _SPREADERS else None
    if not isinstance(raw, dict) or not spread_table.is_spread_marker(raw.get(spread_table.ROWS)):
        return None
    return codec.convert_value(raw[spread_table.ROWS][spread_table.KEY], SpreadTable)


def _compress_bytes(data: bytes, compression: str) -> bytes:
    # In the thread that calls it: Arrow may be loaded here first.
    return encoding.compress_bytes(data, compression)  # type: ignore[arg-type]  # the model knows both names


def _encode_content(result: PipelineResult, data: bytes, format_: str) -> tuple[bytes, str]:
    """Return what is stored and its media type: the very same JSON where there is no table."""
    table = None
    if _count_rows(result) is not None:
        path = ("tasks", str(result.last), "raw")
        table = encoding.encode_table(_build_kept_form(result, data), path, format_=format_)  # type: ignore[arg-type]  # the model knows both names
    if table is None:
        return data, JSON_MEDIA_TYPE
    return table, encoding.get_media_type(format_)  # type: ignore[arg-type]  # as above


def _build_kept_form(result: PipelineResult, data: bytes) -> Any:
    """Return what `data` says, without its rows a second time where they are JSON's already."""
    last = str(result.last)
    front = result.tasks[last]
    if front.kind not in _PLAIN_KINDS:
        return codec.decode_json(data)
    bare = structs.replace(front, raw={**front.raw, "rows": []})
    kept_form = structs.replace(result, tasks={**result.tasks, last: bare})
    plain_form = codec.decode_json(codec.encode_json(kept_form))
    plain_form["tasks"][last]["raw"]["rows"] = front.raw["rows"]
    return plain_form


def _describe_result(
    result: PipelineResult, storage: ResultStorage, *, is_inline: bool
) -> dict[str, Any]:
    """Say what templates may read of a stored result without loading it."""
    about: dict[str, Any] = {"store": storage.backend, **storage.about}
    preview = "" if is_inline else build_preview(result, storage.preview_bytes_max)
    columns, length = find_columns(result), find_list_length(result)
    if preview:
        about["preview"] = preview
    if columns is not None:
        about["columns"] = columns
    if length is not None:
        about["length"] = length
    return about


def _count_rows(result: PipelineResult) -> int | None:
    """Count the rows of a tabular result."""
    front = result.tasks.get(result.last or "")
    raw = front.raw if front is not None else None
    if isinstance(raw, dict) and isinstance(raw.get("rows"), list) and "columns" in raw:
        return len(raw["rows"])
    return None
