"""The collector of loops: it reads the results of a loop's units and stores them as parts."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from msgspec import structs

from noetl_contracts import codec, ids
from noetl_contracts.commands.loop_collections import CollectionLayout, TakenItem, TakenItems
from noetl_contracts.events.frame_events import FrameEnd, FrameFailed
from noetl_contracts.events.step_events import CallDone, CallError, ItemEnd
from noetl_contracts.payloads import (
    INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.requests.facts import Fact, FactBatch, ItemsCollected, PartsCollected
from noetl_planner.domain.loops import loop_ends
from noetl_planner.facts import rejections
from noetl_planner.loops.queue import FinishedLoop
from noetl_planner.loops.taken_units import TakenResults, UnitMerger
from noetl_planner.loops.units import (
    LocalUnitReader,
    UnitEncoder,
    UnitResult,
    build_failure_record,
    list_row_results,
    restore_item_order,
)
from noetl_playbook.views import error_view, loop_parts, result_envelope
from noetl_playbook.views.loop_parts import LoopPart
from noetl_playbook.views.results import LoopResult
from noetl_replay.state import LoopState
from noetl_storage.arrow import result_values
from noetl_storage.ports.ledger_ports import LedgerReader, Payloads

_PAGE_EVENTS = 5_000
_READS_MAX = 32
_PARTS_INLINE_BYTES_MAX = 2 * 1024
log = structlog.get_logger(__name__)


class LayoutCache:
    """Reads layouts; the latest one is kept, for it is asked for twice."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._layouts: tuple[str, CollectionLayout] | None = None

    async def get_layout(self, reference: PayloadRef) -> CollectionLayout:
        """Return the layout that a reference names."""
        if self._layouts is not None and self._layouts[0] == reference.sha256:
            return self._layouts[1]
        layout = codec.decode_as(await self._payloads.read_payload(reference), CollectionLayout)
        self._layouts = (reference.sha256, layout)
        return layout


class LoopCollector:
    """Pages through the outcomes in the ledger; bulk results are read from the payload store."""

    def __init__(self, *, ledger: LedgerReader, payloads: Payloads) -> None:
        self._ledger = ledger
        self._payloads = payloads
        self._load = result_values.build_load(payloads)
        self._layouts = LayoutCache(payloads)
        self._inside_units = LocalUnitReader(load=self._load, open_result=self._read_result)

    async def collect_results(self, of: FinishedLoop) -> FactBatch:
        """Return the fact that ends the loop, or a level of a reduce."""
        loop = of.loop
        fact: Fact
        if loop.mode == "reduce":
            fact = await self._collect_level(of, loop)
        else:
            fact = await self._collect_items(of, loop)
        return FactBatch(
            key=of.collection_key,
            execution_id=of.execution_id,
            tenant_id=of.tenant_id,
            organization_id=of.organization_id,
            producer="planner",
            facts=[fact],
        )

    async def _collect_items(self, of: FinishedLoop, loop: LoopState) -> ItemsCollected:
        try:
            return ItemsCollected(run_id=loop.run_id, result=await self._write_result(of, loop))
        except rejections.UNREADABLE as failure:
            log.exception("results unreadable", execution_id=of.execution_id, step=loop.step)
            stats = codec.to_builtins(loop_ends.count_loop_stats(loop, of.stage, of.takeover))
            loop_result = LoopResult(
                stats=stats,
                fanin={**loop_ends.build_fanin_counters(loop), **loop_parts.build_parts_entry([])},
            )
            return ItemsCollected(
                run_id=loop.run_id,
                result=ResultEnvelope(
                    status="error", context=result_envelope.build_inline_context(loop_result)
                ),
                error=rejections.build_unreadable_fact_error(failure),
            )

    async def _write_result(self, of: FinishedLoop, loop: LoopState) -> ResultEnvelope:
        """Write the results as they are read, so that they are in memory once, encoded."""
        stats = codec.to_builtins(loop_ends.count_loop_stats(loop, of.stage, of.takeover))
        chunks: list[bytes] = []
        counted = UnitEncoder(self._iterate_units(of, loop), chunks, loop)
        head = await counted.read_head(RESULT_INLINE_BYTES_MAX)
        if counted.is_over:
            loop_result = LoopResult(results=codec.decode_json(b"[" + head + b"]"), stats=stats)
            fanin = {**loop_ends.build_fanin_counters(loop), **await self._store_parts(of, chunks)}
            return ResultEnvelope(
                status="ok",
                context=result_envelope.build_inline_context(
                    structs.replace(loop_result, fanin=fanin)
                ),
            )
        reference = await self._payloads.put_payload(
            counted.stream_payload(head, tail=codec.encode_json(stats)),
            tenant_id=of.tenant_id,
            organization_id=of.organization_id,
            media_type=JSON_MEDIA_TYPE,
        )
        fanin = {**loop_ends.build_fanin_counters(loop), **await self._store_parts(of, chunks)}
        return ResultEnvelope(
            status="ok",
            reference=structs.replace(reference, row_count=counted.count),
            context=result_envelope.build_reference_context(
                LoopResult(),
                {"stats": stats, "fanin": fanin},
                is_inline=reference.payload_bytes <= INLINE_BYTES_MAX,
            ),
        )

    async def _store_parts(self, of: FinishedLoop, parts: list[bytes]) -> dict[str, Any]:
        if sum(map(len, parts)) <= _PARTS_INLINE_BYTES_MAX:
            return loop_parts.build_parts_entry([codec.decode_as(part, LoopPart) for part in parts])
        return loop_parts.build_parts_entry(await self._put_part_list(of, parts))

    async def _put_part_list(self, of: FinishedLoop, parts: Iterable[bytes]) -> PayloadRef:
        listed = list(parts)
        reference = await self._payloads.put_payload(
            b"[" + b",".join(listed) + b"]",
            tenant_id=of.tenant_id,
            organization_id=of.organization_id,
            media_type=JSON_MEDIA_TYPE,
        )
        return structs.replace(reference, row_count=len(listed))

    async def _collect_level(self, of: FinishedLoop, loop: LoopState) -> PartsCollected:
        parts = [
            codec.encode_json(LoopPart(index=event.slot, key=str(event.slot), result=event.result))
            async for event in self._iterate_frame_ends(of, loop)
            if event.frame_index == loop.level
        ]
        reference = await self._put_part_list(of, parts)
        return PartsCollected(
            run_id=loop.run_id, level=loop.level, parts_ref=reference, parts=len(parts)
        )

    def _iterate_units(self, of: FinishedLoop, loop: LoopState) -> AsyncIterator[UnitResult]:
        if loop.stage_id is None:
            return self._iterate_items(of, loop)
        if loop.cut is None:
            return self._iterate_claimed_frames(of, loop)
        if of.takeover is not None:
            return self._iterate_merged_units(of, loop, of.takeover)
        if loop.cut.inside is not None:
            return self._iterate_local_units(of, loop)
        return self._iterate_cut_units(of, loop)

    async def _iterate_items(self, of: FinishedLoop, loop: LoopState) -> AsyncIterator[UnitResult]:
        """Yield every item in order; one that never ended is null."""
        last = -1
        async for page in self._iterate_ended_items(of, loop):
            for first in range(0, len(page), _READS_MAX):
                ended = page[first : first + _READS_MAX]
                find = await self._load_results([item.result for item in ended])
                for event in ended:
                    value = _view_item_value(event, find)
                    index = event.item_index or 0
                    for missing in range(last + 1, index):
                        yield _build_cancelled_unit(loop, missing, 1)
                    yield UnitResult(part=_build_item_part(loop, event), results=[value])
                    last = index
        for missing in range(last + 1, loop.total):
            yield _build_cancelled_unit(loop, missing, 1)

    async def _iterate_ended_items(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[list[ItemEnd]]:
        """Yield the outcomes of items page by page in their order, those taken over among them."""
        if of.takeover is None:
            async for page in self._iterate_item_pages(of, loop):
                yield page
            return
        ended = (event async for page in self._iterate_item_pages(of, loop) for event in page)
        event = await anext(ended, None)
        batch: list[ItemEnd] = []
        async for item in TakenResults(self._payloads, of.takeover).read_items():
            while event is not None and (event.item_index or 0) < item.index:
                batch.append(event)
                event = await anext(ended, None)
            batch.append(_view_taken_item(loop, item))
            if len(batch) >= _READS_MAX:
                yield batch
                batch = []
        while event is not None:
            batch.append(event)
            event = await anext(ended, None)
        yield batch

    async def _iterate_item_pages(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[list[ItemEnd]]:
        last = -1
        while page := await self._ledger.list_item_results(
            of.execution_id, loop.run_id, after_index=last, results_max=_PAGE_EVENTS
        ):
            yield page
            last = page[-1].item_index or 0

    async def _iterate_claimed_frames(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[UnitResult]:
        """Yield a cursor's frames, slot by slot in the order of their claims."""
        index = 0
        async for event in self._iterate_frame_ends(of, loop):
            yield UnitResult(
                part=_build_frame_part(event, index, is_single=False),
                results=await self._read_frame_rows(event),
            )
            index += 1

    async def _iterate_cut_units(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[UnitResult]:
        """Yield the frames of a collection; a layout's items return to their own places."""
        sliced_units = self._iterate_sliced_units(of, loop)
        cut = loop.cut
        if cut is None or cut.layout_ref is None or loop.counts_frames:
            async for unit in sliced_units:
                yield unit
            return
        order = (await self._layouts.get_layout(cut.layout_ref)).order
        grouped = [unit async for unit in sliced_units]
        for unit in restore_item_order(grouped, order):
            yield unit

    async def _iterate_sliced_units(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[UnitResult]:
        """Yield frames unit by unit; rows that never ran are null."""
        cut = loop.cut
        assert cut is not None, "only framed loops come here"
        offsets = None
        if cut.layout_ref is not None:
            offsets = (await self._layouts.get_layout(cut.layout_ref)).offsets
        index, unit, count = 0, 0, 0
        async for event in self._iterate_frame_ends(of, loop):
            for missing in _iterate_missing_units(loop, unit, event.slot, count, offsets, index):
                yield missing
                index += 1
            count = 0 if event.slot > unit else count
            unit = event.slot
            first, end = cut.get_unit_bounds(unit, offsets)
            is_single = loop.counts_frames or (loop.mode == "fanout" and end - first == 1)
            results = await self._read_frame_rows(event, as_one=loop.counts_frames)
            yield UnitResult(
                part=_build_frame_part(event, index, is_single=is_single), results=results
            )
            index += 1
            count += event.row_count if loop.counts_frames else len(results)
        for missing in _iterate_missing_units(loop, unit, cut.units, count, offsets, index):
            yield missing

    async def _iterate_merged_units(
        self, of: FinishedLoop, loop: LoopState, takeover: TakenItems
    ) -> AsyncIterator[UnitResult]:
        """Yield the units of a loop that took some over; grouped items return to their places."""
        assert takeover.frames is not None, "only framed loops come here"
        base_ref = takeover.frames.cut.layout_ref
        base = None if base_ref is None else await self._layouts.get_layout(base_ref)
        units = UnitMerger(
            taken_frames=takeover.frames,
            todo=codec.decode_as(
                await self._payloads.read_payload(takeover.todo_ref), CollectionLayout
            ),
            base=base,
            is_fanout=loop.mode == "fanout",
            rows=partial(self._read_frame_rows, as_one=loop.counts_frames),
            open_rows=self._read_kept_rows,
            keep=partial(self._store_rows, of),
        )
        results = TakenResults(self._payloads, takeover)
        merged_units = units.read_units(self._iterate_frame_ends(of, loop), results.read_frames())
        if base is None or loop.counts_frames:
            async for unit in merged_units:
                yield unit
            return
        for unit in restore_item_order([unit async for unit in merged_units], base.order):
            yield unit

    async def _read_kept_rows(self, result: ResultEnvelope) -> list[Any]:
        return list_row_results(await self._read_result(result))

    async def _store_rows(self, of: FinishedLoop, rows: list[Any]) -> ResultEnvelope:
        """Keep what a unit gave, as a worker keeps what a frame gave."""
        loop_result = LoopResult(results=rows)
        keep = result_values.build_keep(
            self._payloads, tenant_id=of.tenant_id, organization_id=of.organization_id
        )
        return await result_values.build_result_envelope(
            keep,
            codec.encode_json(loop_result),
            inline=lambda: result_envelope.build_inline_context(loop_result),
            beside=result_envelope.build_reference_context(LoopResult(), {}),
            row_count=len(rows),
        )

    async def _iterate_local_units(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[UnitResult]:
        """Yield the units that one worker ran."""
        cut = loop.cut
        assert cut is not None, "only framed loops come here"
        layout = None if cut.layout_ref is None else await self._layouts.get_layout(cut.layout_ref)
        async for event in self._iterate_frame_ends(of, loop):
            async for unit in self._inside_units.read_units(event, loop, layout):
                yield unit

    async def _iterate_frame_ends(
        self, of: FinishedLoop, loop: LoopState
    ) -> AsyncIterator[FrameEnd]:
        after = (-1, -1)
        assert loop.stage_id is not None, "frames belong to a stage"
        while page := await self._ledger.list_frame_results(
            of.execution_id, loop.stage_id, after=after, results_max=_PAGE_EVENTS
        ):
            for event in page:
                yield event
                after = (event.slot, event.frame_index)

    async def _read_frame_rows(self, event: FrameEnd, *, as_one: bool = False) -> list[Any]:
        """Return what a frame adds to `results`: an entry a row, or one for the frame."""
        if event.result is None:
            count = 1 if as_one else event.row_count
            return [build_failure_record(event)] * count
        return list_row_results(await self._read_result(event.result))

    async def _read_result(self, result: ResultEnvelope) -> Any:
        return result_envelope.build_plain_result(result, await self._load_results([result]))

    async def _load_results(self, results: Sequence[ResultEnvelope | None]) -> result_envelope.Find:
        """Read what of these is stored, all at once: most travel, and take no turn of the loop."""
        stored = [
            result for result in results if result is not None and result.reference is not None
        ]
        loaded: dict[str, Any] = {}
        for item in await asyncio.gather(
            *(result_values.load_stored_result(self._load, reference) for reference in stored)
        ):
            loaded |= item
        return result_envelope.make_payload_finder(loaded)


def _view_item_value(event: ItemEnd, find: result_envelope.Find) -> Any:
    plain = None if event.result is None else result_envelope.build_plain_result(event.result, find)
    if isinstance(event, CallDone):
        return plain
    record = {"status": "error", "error": error_view.show_error(codec.to_builtins(event.error))}
    return {**plain, **record} if isinstance(plain, dict) else record


def _view_taken_item(loop: LoopState, item: TakenItem) -> CallDone:
    """Show an item that is taken over as the one that completed it was."""
    return CallDone(
        step=loop.step,
        run_id=loop.run_id,
        command_id=ids.derive_command_id(loop.run_id, f"item-{item.index}"),
        result=item.result,
        item_index=item.index,
    )


def _build_item_part(loop: LoopState, event: ItemEnd) -> LoopPart:
    index = event.item_index or 0
    error = codec.to_builtins(event.error) if isinstance(event, CallError) else None
    return LoopPart(
        index=index,
        key=f"{loop.run_id}:{index}",
        status="ok" if error is None else "error",
        result=event.result,
        error=error,
    )


def _build_frame_part(event: FrameEnd, index: int, *, is_single: bool) -> LoopPart:
    error = codec.to_builtins(event.error) if isinstance(event, FrameFailed) else None
    return LoopPart(
        index=index,
        key=event.key or str(index),
        status="ok" if error is None else "error",
        result=event.result,
        error=error,
        row_count=event.row_count,
        is_single=is_single,
    )


def _build_cancelled_unit(loop: LoopState, index: int, results: int) -> UnitResult:
    key = str(index) if loop.cut is not None else f"{loop.run_id}:{index}"
    return UnitResult(
        part=LoopPart(index=index, key=key, status="cancelled"), results=[None] * results
    )


def _iterate_missing_units(
    loop: LoopState, unit: int, until: int, count: int, offsets: list[int] | None, index: int
) -> Iterable[UnitResult]:
    """Stand in for rows that never ran: the rest of `unit`, and whole units up to `until`."""
    assert loop.cut is not None, "only framed loops come here"
    for item in range(unit, until):
        first, end = loop.cut.get_unit_bounds(item, offsets)
        missing_count = end - first - (count if item == unit else 0)
        if missing_count > 0:
            yield _build_cancelled_unit(loop, index, 1 if loop.counts_frames else missing_count)
            index += 1
