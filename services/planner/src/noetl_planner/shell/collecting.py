"""Gathers what the units of a finished loop gave, in order, into one result and a list of parts."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

import structlog
from msgspec import structs

from noetl_contracts import codec, ids
from noetl_contracts.events.frame import FrameEnd, FrameFailed
from noetl_contracts.events.step import CallDone, CallError, ItemEnd
from noetl_contracts.facts import Fact, FactBatch, ItemsCollected, PartsCollected
from noetl_contracts.payloads import (
    INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.slicing import Layout
from noetl_contracts.taken_items import TakenItem, TakenItems
from noetl_planner.domain import ending
from noetl_planner.shell import refusing
from noetl_planner.shell.counted_units import CountedUnits
from noetl_planner.shell.gathered import InsideUnits, Unit, entries, failure, regrouped
from noetl_planner.shell.gathering import Finished
from noetl_planner.shell.layouts import Layouts
from noetl_planner.shell.merged_units import MergedUnits
from noetl_planner.shell.taken_results import TakenResults
from noetl_playbook import carried, error_view, parts
from noetl_playbook.parts import Part
from noetl_playbook.results import LoopResult
from noetl_replay.state import LoopState
from noetl_storage import envelopes
from noetl_storage.ports import LedgerReader, Payloads

_PAGE_EVENTS = 5_000
_READS_MAX = 32
_PARTS_INLINE_BYTES_MAX = 2 * 1024

log = structlog.get_logger(__name__)


class Collector:
    """Pages through the outcomes in the ledger; bulk results are read from the payload store."""

    def __init__(self, *, ledger: LedgerReader, payloads: Payloads) -> None:
        self._ledger = ledger
        self._payloads = payloads
        self._load = envelopes.reading(payloads)
        self._layouts = Layouts(payloads)
        self._inside_units = InsideUnits(load=self._load, open_result=self._value)

    async def collect(self, of: Finished) -> FactBatch:
        """Return the fact that ends the loop, or a level of a reduce."""
        loop = of.loop
        fact: Fact
        if loop.mode == "reduce":
            fact = await self._level(of, loop)
        else:
            fact = await self._items_collected(of, loop)
        return FactBatch(
            key=of.key,
            execution_id=of.execution_id,
            tenant_id=of.tenant_id,
            organization_id=of.organization_id,
            producer="planner",
            facts=[fact],
        )

    async def _items_collected(self, of: Finished, loop: LoopState) -> ItemsCollected:
        try:
            return ItemsCollected(run_id=loop.run_id, result=await self._result(of, loop))
        except refusing.UNREADABLE as failure:
            log.exception("results unreadable", execution_id=of.execution_id, step=loop.step)
            stats = codec.builtins(ending.stats_of(loop, of.stage, of.taken))
            kept = LoopResult(stats=stats, fanin={**ending.counters(loop), **parts.kept([])})
            return ItemsCollected(
                run_id=loop.run_id,
                result=ResultEnvelope(status="error", context=carried.inline(kept)),
                error=refusing.unreadable(failure),
            )

    async def _result(self, of: Finished, loop: LoopState) -> ResultEnvelope:
        """Write the results as they are read, so that they are in memory once, encoded."""
        stats = codec.builtins(ending.stats_of(loop, of.stage, of.taken))
        found: list[bytes] = []
        counted = CountedUnits(self._units(of, loop), found)
        head = await counted.head(RESULT_INLINE_BYTES_MAX)
        if counted.is_over:
            kept = LoopResult(results=codec.decode(b"[" + head + b"]"), stats=stats)
            fanin = {**ending.counters(loop), **await self._kept_parts(of, found)}
            return ResultEnvelope(
                status="ok", context=carried.inline(structs.replace(kept, fanin=fanin))
            )
        reference = await self._payloads.put(
            counted.payload(head, tail=codec.encode(stats)),
            tenant_id=of.tenant_id,
            organization_id=of.organization_id,
            media_type=JSON_MEDIA_TYPE,
        )
        fanin = {**ending.counters(loop), **await self._kept_parts(of, found)}
        return ResultEnvelope(
            status="ok",
            reference=structs.replace(reference, row_count=counted.count),
            context=carried.referenced(
                LoopResult(),
                {"stats": stats, "fanin": fanin},
                is_inline=reference.payload_bytes <= INLINE_BYTES_MAX,
            ),
        )

    async def _kept_parts(self, of: Finished, found: list[bytes]) -> dict[str, Any]:
        if sum(map(len, found)) <= _PARTS_INLINE_BYTES_MAX:
            return parts.kept([codec.decode_as(part, Part) for part in found])
        return parts.kept(await self._put_parts(of, found))

    async def _put_parts(self, of: Finished, found: Iterable[bytes]) -> PayloadRef:
        listed = list(found)
        reference = await self._payloads.put(
            b"[" + b",".join(listed) + b"]",
            tenant_id=of.tenant_id,
            organization_id=of.organization_id,
            media_type=JSON_MEDIA_TYPE,
        )
        return structs.replace(reference, row_count=len(listed))

    async def _level(self, of: Finished, loop: LoopState) -> PartsCollected:
        found = [
            codec.encode(Part(index=event.slot, key=str(event.slot), result=event.result))
            async for event in self._frames(of, loop)
            if event.frame_index == loop.level
        ]
        reference = await self._put_parts(of, found)
        return PartsCollected(
            run_id=loop.run_id, level=loop.level, parts_ref=reference, parts=len(found)
        )

    def _units(self, of: Finished, loop: LoopState) -> AsyncIterator[Unit]:
        if loop.stage_id is None:
            return self._items(of, loop)
        if loop.cut is None:
            return self._claimed(of, loop)
        if of.taken is not None:
            return self._merged(of, loop, of.taken)
        if loop.cut.inside is not None:
            return self._inside(of, loop)
        return self._cut(of, loop)

    async def _items(self, of: Finished, loop: LoopState) -> AsyncIterator[Unit]:
        """Yield every item in order; one that never ended is null."""
        last = -1
        async for page in self._ended_items(of, loop):
            for first in range(0, len(page), _READS_MAX):
                ended = page[first : first + _READS_MAX]
                find = await self._found([one.result for one in ended])
                for event in ended:
                    value = _item_value(event, find)
                    index = event.item_index or 0
                    for missing in range(last + 1, index):
                        yield _cancelled(loop, missing, 1)
                    yield Unit(part=_item_part(loop, event), results=[value])
                    last = index
        for missing in range(last + 1, loop.total):
            yield _cancelled(loop, missing, 1)

    async def _ended_items(self, of: Finished, loop: LoopState) -> AsyncIterator[list[ItemEnd]]:
        """Yield the outcomes of items page by page in their order, those taken over among them."""
        if of.taken is None:
            async for page in self._item_pages(of, loop):
                yield page
            return
        ended = (event async for page in self._item_pages(of, loop) for event in page)
        event = await anext(ended, None)
        batch: list[ItemEnd] = []
        async for item in TakenResults(self._payloads, of.taken).read_items():
            while event is not None and (event.item_index or 0) < item.index:
                batch.append(event)
                event = await anext(ended, None)
            batch.append(_taken_end(loop, item))
            if len(batch) >= _READS_MAX:
                yield batch
                batch = []
        while event is not None:
            batch.append(event)
            event = await anext(ended, None)
        yield batch

    async def _item_pages(self, of: Finished, loop: LoopState) -> AsyncIterator[list[ItemEnd]]:
        last = -1
        while page := await self._ledger.list_item_results(
            of.execution_id, loop.run_id, after_index=last, results_max=_PAGE_EVENTS
        ):
            yield page
            last = page[-1].item_index or 0

    async def _claimed(self, of: Finished, loop: LoopState) -> AsyncIterator[Unit]:
        """Yield a cursor's frames, slot by slot in the order of their claims."""
        index = 0
        async for event in self._frames(of, loop):
            yield Unit(
                part=_frame_part(event, index, is_single=False),
                results=await self._rows(event),
            )
            index += 1

    async def _cut(self, of: Finished, loop: LoopState) -> AsyncIterator[Unit]:
        """Yield the frames of a collection; a layout's items return to their own places."""
        found = self._sliced(of, loop)
        cut = loop.cut
        if cut is None or cut.layout_ref is None or loop.counts_frames:
            async for unit in found:
                yield unit
            return
        order = (await self._layouts.get(cut.layout_ref)).order
        grouped = [unit async for unit in found]
        for unit in regrouped(grouped, order):
            yield unit

    async def _sliced(self, of: Finished, loop: LoopState) -> AsyncIterator[Unit]:
        """Yield frames unit by unit; rows that never ran are null."""
        cut = loop.cut
        assert cut is not None, "only framed loops come here"
        offsets = None
        if cut.layout_ref is not None:
            offsets = (await self._layouts.get(cut.layout_ref)).offsets
        index, unit, done = 0, 0, 0
        async for event in self._frames(of, loop):
            for missing in _missing(loop, unit, event.slot, done, offsets, index):
                yield missing
                index += 1
            done = 0 if event.slot > unit else done
            unit = event.slot
            first, end = cut.bounds(unit, offsets)
            is_single = loop.counts_frames or (loop.mode == "fanout" and end - first == 1)
            results = await self._rows(event, as_one=loop.counts_frames)
            yield Unit(part=_frame_part(event, index, is_single=is_single), results=results)
            index += 1
            done += event.row_count if loop.counts_frames else len(results)
        for missing in _missing(loop, unit, cut.units, done, offsets, index):
            yield missing

    async def _merged(
        self, of: Finished, loop: LoopState, taken: TakenItems
    ) -> AsyncIterator[Unit]:
        """Yield the units of a loop that took some over; grouped items return to their places."""
        assert taken.frames is not None, "only framed loops come here"
        base_ref = taken.frames.cut.layout_ref
        base = None if base_ref is None else await self._layouts.get(base_ref)
        units = MergedUnits(
            taken=taken.frames,
            todo=codec.decode_as(await self._payloads.read(taken.todo_ref), Layout),
            base=base,
            is_fanout=loop.mode == "fanout",
            rows=partial(self._rows, as_one=loop.counts_frames),
            open_rows=self._open_rows,
            keep=partial(self._keep_rows, of),
        )
        results = TakenResults(self._payloads, taken)
        found = units.read(self._frames(of, loop), results.read_frames())
        if base is None or loop.counts_frames:
            async for unit in found:
                yield unit
            return
        for unit in regrouped([unit async for unit in found], base.order):
            yield unit

    async def _open_rows(self, result: ResultEnvelope) -> list[Any]:
        return entries(await self._value(result))

    async def _keep_rows(self, of: Finished, rows: list[Any]) -> ResultEnvelope:
        """Keep what a unit gave, as a worker keeps what a frame gave."""
        kept = LoopResult(results=rows)
        keep = envelopes.keeping(
            self._payloads, tenant_id=of.tenant_id, organization_id=of.organization_id
        )
        return await envelopes.externalize(
            keep,
            codec.encode(kept),
            inline=lambda: carried.inline(kept),
            beside=carried.referenced(LoopResult(), {}),
            row_count=len(rows),
        )

    async def _inside(self, of: Finished, loop: LoopState) -> AsyncIterator[Unit]:
        """Yield the units that one worker ran."""
        cut = loop.cut
        assert cut is not None, "only framed loops come here"
        layout = None if cut.layout_ref is None else await self._layouts.get(cut.layout_ref)
        async for event in self._frames(of, loop):
            async for unit in self._inside_units.read(event, loop, layout):
                yield unit

    async def _frames(self, of: Finished, loop: LoopState) -> AsyncIterator[FrameEnd]:
        after = (-1, -1)
        assert loop.stage_id is not None, "frames belong to a stage"
        while page := await self._ledger.list_frame_results(
            of.execution_id, loop.stage_id, after=after, results_max=_PAGE_EVENTS
        ):
            for event in page:
                yield event
                after = (event.slot, event.frame_index)

    async def _rows(self, event: FrameEnd, *, as_one: bool = False) -> list[Any]:
        """Return what a frame adds to `results`: an entry a row, or one for the frame."""
        if event.result is None:
            count = 1 if as_one else event.row_count
            return [failure(event)] * count
        return entries(await self._value(event.result))

    async def _value(self, result: ResultEnvelope) -> Any:
        return carried.plain(result, await self._found([result]))

    async def _found(self, results: Sequence[ResultEnvelope | None]) -> carried.Find:
        """Read what of these is stored, all at once: most travel, and take no turn of the loop."""
        stored = [one for one in results if one is not None and one.reference is not None]
        loaded: dict[str, Any] = {}
        for one in await asyncio.gather(*(envelopes.loaded(self._load, each) for each in stored)):
            loaded |= one
        return carried.found_in(loaded)


def _item_value(event: ItemEnd, find: carried.Find) -> Any:
    plain = None if event.result is None else carried.plain(event.result, find)
    if isinstance(event, CallDone):
        return plain
    record = {"status": "error", "error": error_view.shown(codec.builtins(event.error))}
    return {**plain, **record} if isinstance(plain, dict) else record


def _taken_end(loop: LoopState, item: TakenItem) -> CallDone:
    """Show an item that is taken over as the one that completed it was."""
    return CallDone(
        step=loop.step,
        run_id=loop.run_id,
        command_id=ids.command_id(loop.run_id, f"item-{item.index}"),
        result=item.result,
        item_index=item.index,
    )


def _item_part(loop: LoopState, event: ItemEnd) -> Part:
    index = event.item_index or 0
    error = codec.builtins(event.error) if isinstance(event, CallError) else None
    return Part(
        index=index,
        key=f"{loop.run_id}:{index}",
        status="ok" if error is None else "error",
        result=event.result,
        error=error,
    )


def _frame_part(event: FrameEnd, index: int, *, is_single: bool) -> Part:
    error = codec.builtins(event.error) if isinstance(event, FrameFailed) else None
    return Part(
        index=index,
        key=event.key or str(index),
        status="ok" if error is None else "error",
        result=event.result,
        error=error,
        row_count=event.row_count,
        is_single=is_single,
    )


def _cancelled(loop: LoopState, index: int, results: int) -> Unit:
    key = str(index) if loop.cut is not None else f"{loop.run_id}:{index}"
    return Unit(part=Part(index=index, key=key, status="cancelled"), results=[None] * results)


def _missing(
    loop: LoopState, unit: int, until: int, done: int, offsets: list[int] | None, index: int
) -> Iterable[Unit]:
    """Stand in for rows that never ran: the rest of `unit`, and whole units up to `until`."""
    assert loop.cut is not None, "only framed loops come here"
    for each in range(unit, until):
        first, end = loop.cut.bounds(each, offsets)
        left = end - first - (done if each == unit else 0)
        if left > 0:
            yield _cancelled(loop, index, 1 if loop.counts_frames else left)
            index += 1
