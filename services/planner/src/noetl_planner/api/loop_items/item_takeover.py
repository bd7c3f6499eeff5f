"""A rerun of failed items: finds the loop, and stores what it takes over from completed items."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import (
    PART_BYTES_MAX,
    CollectionForm,
    CollectionLayout,
    ListPart,
    PartList,
    TakenFrame,
    TakenFrames,
    TakenItem,
    TakenItems,
)
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup.views import Row
from noetl_planner.api.loop_items import loop_record
from noetl_planner.api.loop_items.frame_rows import EndedFrame, UnitFrames, open_frame_rows
from noetl_planner.api.loop_items.loop_record import LoopRecord
from noetl_planner.domain.loops import reruns
from noetl_planner.domain.loops.reruns import LoopChoiceError, LoopOutcome
from noetl_planner.loops.taken_units import TakenResults
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.plan import WorkflowGraph, map_steps_by_name
from noetl_playbook.templates import output_forms
from noetl_replay.state import ExecutionState


async def find_failed_loop(
    services: ApiServices,
    row: Row,
    ended: ExecutionState,
    playbook: Playbook,
    graph: WorkflowGraph,
    *,
    from_step: str | None,
) -> LoopRecord:
    """Return the loop whose items run again; raises a 409 or a 422 where there is none."""
    if not ended.is_terminal():
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="execution_running",
            detail=f"execution {ended.execution_id} is {row['status']}: which items did not "
            "complete is known when it has ended",
            hint="wait for its end, or cancel it (noetl cancel ID)",
        )
    steps = map_steps_by_name(playbook)
    names = [name for name, step in steps.items() if step.loop is not None]
    records = await _list_records(services, ended, names)
    try:
        chosen = reruns.choose_failed_loop(
            [outcome for outcome, _ in records], graph, from_step=from_step
        )
        reruns.check_loop_definition(chosen, steps[chosen.step])
    except LoopChoiceError as failure:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code=failure.code,
            detail=f"execution {ended.execution_id}: {failure.detail}",
            hint=failure.hint,
        ) from failure
    return next(record for outcome, record in records if outcome is chosen)


async def _list_records(
    services: ApiServices, ended: ExecutionState, names: list[str]
) -> list[tuple[LoopOutcome, LoopRecord]]:
    """List the latest epochs of loops that began in this execution."""
    records: list[tuple[LoopOutcome, LoopRecord]] = []
    for name in names:
        if name not in ended.steps:
            continue
        try:
            record = await loop_record.get_loop_record(services, ended, name)
        except ApiError:
            # It was taken over from an execution before, or did not get to begin.
            continue
        records.append((await _build_loop_outcome(services.history, record), record))
    return records


async def _build_loop_outcome(history: HistoryStores, record: LoopRecord) -> LoopOutcome:
    counts = await loop_record.count_units(history, record)
    return LoopOutcome(
        step=record.started.step,
        began_at=record.version,
        total=counts.get("total", record.started.total or 0),
        completed=counts.get("completed", 0),
        failed=counts.get("failed", 0),
        mode=record.started.mode,
        is_framed=record.is_framed,
        has_cursor=record.has_cursor,
        is_cut_inside=record.is_cut_inside,
    )


_PAGE = 1_000


class ItemTakeover(Struct, frozen=True, kw_only=True):
    """What is taken over by which step, and what the items that completed wrote to `ctx`."""

    step: str
    items: TakenItems
    patch: dict[str, Any]


class PartWriter:
    """Stores entries as consecutive parts of a list; one part is held at once."""

    def __init__(self, services: ApiServices) -> None:
        self._services = services
        self._part: list[bytes] = []
        self._bytes = 0
        self._start = 0
        self._end = 0
        self._parts: list[ListPart] = []

    async def append_entry(self, place: int, entry: Any) -> None:
        """Add an entry at a place, which is not before that of the entry added last."""
        data = codec.encode_json(entry)
        # Entries of one place stay together: a part is found by the places that it has.
        is_full = self._bytes + len(data) > PART_BYTES_MAX and place >= self._end
        if self._part and is_full:
            await self._flush_part()
        if not self._part:
            self._start = place
        self._part.append(data)
        self._bytes += len(data) + 1
        self._end = place + 1

    async def close(self) -> PayloadRef:
        """Store what is left, and the list of parts; return where that is."""
        if self._part:
            await self._flush_part()
        listed = PartList(total=self._end, parts=self._parts)
        return await self._put_payload(codec.encode_json(listed), row_count=self._end)

    async def _flush_part(self) -> None:
        data = b"[" + b",".join(self._part) + b"]"
        reference = await self._put_payload(data, row_count=len(self._part))
        self._parts.append(ListPart(start=self._start, end=self._end, ref=reference))
        self._part, self._bytes = [], 0

    async def _put_payload(self, data: bytes, *, row_count: int) -> PayloadRef:
        return await self._services.payloads.put_payload(
            data, media_type=JSON_MEDIA_TYPE, row_count=row_count, **self._services.tenant_scope
        )


async def take_items(services: ApiServices, record: LoopRecord) -> ItemTakeover:
    """Store what the items of a loop gave that completed; raises a 422 when all have, or depend."""
    kind = _FrameTaker if record.is_framed else _ItemTaker
    taking = await kind(services, record).take_over()
    if not taking.items.todo:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="no_failed_items",
            detail=f"all items of the loop of step {record.started.step!r} completed",
            hint=f"run all of them again: --from {record.started.step}",
        )
    return taking


class _ItemTaker:
    """Takes over items that have a command each."""

    def __init__(self, services: ApiServices, record: LoopRecord) -> None:
        self._services = services
        self._record = record

    async def take_over(self) -> ItemTakeover:
        """Store what completed items gave, and which ones are to run."""
        record, total = self._record, self._record.started.total or 0
        writer = PartWriter(self._services)
        patch: dict[str, Any] = {}
        todo: list[int] = []
        following = 0
        async for item, written in self._iterate_completed():
            todo.extend(range(following, item.index))
            following = item.index + 1
            if written and todo and record.started.mode == "sequential":
                raise _build_items_depend_error(record, todo[0])
            patch.update(written)
            await writer.append_entry(item.index, item)
        todo.extend(range(following, total))
        reference, form = await _store_whole_collection(self._services, record)
        items = TakenItems(
            execution_id=record.execution_id,
            run_id=record.run_id,
            mode=record.started.mode,
            total=total,
            completed=total - len(todo),
            todo=len(todo),
            results_ref=await writer.close(),
            todo_ref=await _put_value(self._services, todo),
            collection_ref=reference,
            collection_form=form,
        )
        return ItemTakeover(step=record.started.step, items=items, patch=patch)

    async def _iterate_completed(self) -> AsyncIterator[tuple[TakenItem, dict[str, Any]]]:
        """Yield items that completed in their order, with what each wrote to `ctx`."""
        before = self._iterate_taken_before()
        ended = self._iterate_ended_items()
        item, other = await anext(before, None), await anext(ended, None)
        while item is not None or other is not None:
            if other is None or (item is not None and item[0].index < other[0].index):
                assert item is not None, "one of both is there"
                yield item
                item = await anext(before, None)
            else:
                yield other
                other = await anext(ended, None)

    async def _iterate_taken_before(self) -> AsyncIterator[tuple[TakenItem, dict[str, Any]]]:
        """Yield what was taken over already; what it wrote was in `ctx` before the step began."""
        takeover = self._record.started.taken
        if takeover is None:
            return
        async for item in TakenResults(self._services.payloads, takeover).read_items():
            yield item, {}

    async def _iterate_ended_items(self) -> AsyncIterator[tuple[TakenItem, dict[str, Any]]]:
        after = -1
        while page := await self._services.history.ledger.list_item_results(
            self._record.execution_id, self._record.run_id, after_index=after, results_max=_PAGE
        ):
            for event in page:
                if isinstance(event, CallDone):
                    yield TakenItem(index=event.item_index or 0, result=event.result), event.patch
            after = page[-1].item_index or 0


class _FrameTaker:
    """Takes over rows of frames, and whole frames where they keep no record of their rows."""

    def __init__(self, services: ApiServices, record: LoopRecord) -> None:
        self._services = services
        self._record = record
        self._results = PartWriter(services)
        self._rows = PartWriter(services)
        self._patch: dict[str, Any] = {}
        self._order: list[int] = []
        self._offsets = [0]
        self._completed = self._units_ok = self._whole = 0

    async def take_over(self) -> ItemTakeover:
        """Store what completed rows gave, and which ones are to run."""
        record = self._record
        frames = await open_frame_rows(self._services, record)
        collection = record.open_collection(self._services)
        async for unit in frames.read_units(first=0):
            indexes = frames.places.list_unit_items(unit.unit)
            taken_indexes = await self._take_unit(unit, indexes)
            first, _ = frames.places.get_unit_bounds(unit.unit)
            for place, index in enumerate(indexes, first):
                if index not in taken_indexes:
                    value = output_forms.to_plain(await collection.read_item(place))
                    await self._rows.append_entry(len(self._order), value)
                    self._order.append(index)
            self._offsets.append(len(self._order))
            is_ok = self._offsets[-2] == self._offsets[-1]
            self._units_ok += is_ok
            self._completed += is_ok if record.started.counts_frames else len(taken_indexes)
        layout = CollectionLayout(offsets=self._offsets, order=self._order)
        reference, form = await _store_whole_collection(self._services, record)
        items = TakenItems(
            execution_id=record.execution_id,
            run_id=record.run_id,
            mode=record.started.mode,
            total=record.started.total or 0,
            completed=self._completed,
            todo=len(self._order),
            results_ref=await self._results.close(),
            todo_ref=await _put_value(self._services, layout),
            collection_ref=reference,
            collection_form=form,
            frames=TakenFrames(
                cut=record.cut,
                rows_ref=await self._rows.close(),
                rows_form=CollectionForm.PARTS,
                units_ok=self._units_ok,
                whole=self._whole,
                counts_frames=record.started.counts_frames,
            ),
        )
        return ItemTakeover(step=record.started.step, items=items, patch=self._patch)

    async def _take_unit(self, unit: UnitFrames, indexes: list[int]) -> set[int]:
        """Store what of a unit is taken over; return its items."""
        taken_indexes: set[int] = set()
        frames = [
            *unit.taken,
            *(
                taken_frame
                for frame in unit.ended
                if (taken_frame := _build_taken_frame(unit, frame))
            ),
        ]
        places = {place for frame in frames for place in frame.list_item_indexes() if place >= 0}
        if self._record.started.counts_frames and places != set(indexes):
            # One body runs for all rows of the unit, or for none.
            return taken_indexes
        for frame in frames:
            await self._results.append_entry(frame.unit, frame)
        for ended in unit.ended:
            if _build_taken_frame(unit, ended) is not None:
                self._note_ctx_writes(ended)
        if len(places) == len(indexes):
            # Frames of which a part was taken over became one when the rest had run.
            self._whole += len(frames) if all(frame.is_complete for frame in frames) else 1
        return places

    def _note_ctx_writes(self, ended: EndedFrame) -> None:
        """Note what a frame wrote to `ctx`."""
        errors = ended.errors or []
        failed = [
            index for index, error in zip(ended.indexes, errors, strict=False) if error is not None
        ]
        behind = [*self._order[:1], *failed[:1]]
        if ended.event.patch and behind and self._record.started.mode == "sequential":
            raise _build_items_depend_error(self._record, behind[0])
        self._patch.update(ended.event.patch)


def _build_taken_frame(unit: UnitFrames, ended: EndedFrame) -> TakenFrame | None:
    """Return what of a frame is taken over, None for nothing."""
    if ended.errors is None:
        return None
    rows = zip(ended.indexes, ended.errors, strict=False)
    places = [index if error is None else -1 for index, error in rows]
    if all(place < 0 for place in places):
        return None
    is_run = places == list(range(places[0], places[0] + len(places)))
    return TakenFrame(
        unit=unit.unit,
        row_count=len(places),
        start=places[0] if is_run else 0,
        indexes=None if is_run else places,
        key=ended.event.key,
        result=ended.event.result,
    )


async def _store_whole_collection(
    services: ApiServices, record: LoopRecord
) -> tuple[PayloadRef | None, CollectionForm]:
    """Return where the collection is kept as a whole; a small one is stored for it."""
    started, takeover = record.started, record.started.taken
    if takeover is not None:
        return takeover.collection_ref, takeover.collection_form
    if started.collection is not None:
        return await _put_value(services, started.collection), CollectionForm.LIST
    return started.collection_ref, started.collection_form


async def _put_value(services: ApiServices, value: Any) -> PayloadRef:
    return await services.payloads.put_payload(
        codec.encode_json(value), media_type=JSON_MEDIA_TYPE, **services.tenant_scope
    )


def _build_items_depend_error(record: LoopRecord, index: int) -> ApiError:
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="items_depend",
        detail=f"item {index} of the sequential loop {record.started.step!r} did not complete, and "
        "items after it wrote to `ctx`: run alone it would see what they wrote",
        hint=f"run all items again: --from {record.started.step}",
    )
