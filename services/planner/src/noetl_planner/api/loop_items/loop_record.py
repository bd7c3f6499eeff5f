"""The latest epoch of a step's loop: its collection by index, its counts and its layout."""

from http import HTTPStatus
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import (
    CollectionCut,
    CollectionForm,
    CollectionLayout,
    ListPart,
    PartList,
)
from noetl_contracts.events.loop_events import LoopDone, LoopFailed, LoopStarted, StageOpened
from noetl_contracts.events.step_events import StepEnter
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import PayloadRef
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.service_groups import HistoryStores
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup, payload_reader
from noetl_planner.domain.decision import idempotency_keys
from noetl_playbook.views import result_envelope
from noetl_replay.state import ExecutionState, LoopState


class CollectionReader:
    """Reads items of a collection by index; a collection stored in parts is read part by part."""

    def __init__(
        self,
        services: ApiServices,
        *,
        form: CollectionForm,
        reference: PayloadRef | None,
        inline: list[Any] | None = None,
    ) -> None:
        self._services = services
        self._form = form
        self._reference = reference
        self._items = inline
        self._parts: list[ListPart] | None = None
        self._part: tuple[ListPart, list[Any]] | None = None

    async def read_item(self, index: int) -> Any:
        """Return the item at an index; raises an `ApiError` when its payload cannot be read."""
        if self._items is None and self._reference is None:
            return index
        if self._items is None and self._parts is None:
            await self._open_payload()
        if self._items is not None:
            return self._items[index]
        return await self._read_from_part(index)

    async def find_reference(self, index: int) -> tuple[PayloadRef, int] | None:
        """Return the payload of an item and the item's index in it; None for an inline item."""
        if self._reference is None or self._form is CollectionForm.RANGE:
            return None
        if self._parts is not None:
            part = self._find_part(index)
            return part.ref, index - part.start
        return self._reference, index

    async def _open_payload(self) -> None:
        assert self._reference is not None, "what is not inline is stored"
        if self._form is CollectionForm.PARTS:
            listed = await payload_reader.read_payload(self._services, self._reference)
            self._parts = codec.convert_value(listed, PartList).parts
            return
        try:
            data = await payload_reader.read_payload(self._services, self._reference)
        except ApiError:
            # A worker cuts what is large into parts before it runs items of it.
            name = f"slices/{self._reference.sha256}"
            cut = await self._services.payloads.find_named(name, **self._services.tenant_scope)
            if cut is None:
                raise
            self._parts = codec.decode_as(cut, PartList).parts
            return
        is_list = self._form is CollectionForm.LIST
        self._items = (
            list(data) if is_list else result_envelope.list_result_rows(str(self._form), data)
        )

    async def _read_from_part(self, index: int) -> Any:
        part = self._find_part(index)
        if self._part is None or self._part[0] is not part:
            self._part = part, await payload_reader.read_payload(self._services, part.ref)
        return self._part[1][index - part.start]

    def _find_part(self, index: int) -> ListPart:
        assert self._parts is not None, "only collections in parts come here"
        list_part = self._part[0] if self._part is not None else None
        if list_part is not None and list_part.start <= index < list_part.end:
            return list_part
        return next(part for part in self._parts if part.start <= index < part.end)


class LoopRecord(Struct, frozen=True, kw_only=True):
    """The latest epoch of a step's loop.

    `version` is the position at which it began, `live` its state while it goes on. `policy` is that
    of its frames, empty for a loop whose units are items.
    """

    state: ExecutionState
    started: LoopStarted
    version: int
    live: LoopState | None
    policy: dict[str, Any]

    @property
    def execution_id(self) -> ExecutionId:
        """Return the execution."""
        return self.state.execution_id

    @property
    def run_id(self) -> RunId:
        """Return the run of the step."""
        return self.started.run_id

    @property
    def has_cursor(self) -> bool:
        """Tell whether the loop claims its rows from a source of theirs."""
        return self.started.stage_id is not None and self.started.cut is None

    @property
    def is_cut_inside(self) -> bool:
        """Tell whether one worker cuts the loop into units that the ledger does not know."""
        return self.started.cut is not None and self.started.cut.inside is not None

    @property
    def is_framed(self) -> bool:
        """Tell whether the units are frames."""
        return self.started.stage_id is not None

    @property
    def fails_whole(self) -> bool:
        """Tell whether a frame fails with all its rows: one transaction, or one body for them."""
        is_transaction = bool(self.policy.get("transaction"))
        return self.started.counts_frames or is_transaction

    @property
    def cut(self) -> CollectionCut:
        """Return how the whole collection is cut, that which was taken over included."""
        takeover = self.started.taken
        if takeover is not None and takeover.frames is not None:
            return takeover.frames.cut
        assert self.started.cut is not None, "only framed loops are cut"
        return self.started.cut

    def open_collection(self, services: ApiServices) -> CollectionReader:
        """Open the whole collection."""
        started, takeover = self.started, self.started.taken
        if takeover is not None:
            return CollectionReader(
                services, form=takeover.collection_form, reference=takeover.collection_ref
            )
        is_range = started.collection_form is CollectionForm.RANGE
        return CollectionReader(
            services,
            form=started.collection_form,
            reference=started.collection_ref,
            inline=None if is_range else started.collection,
        )


async def get_loop_record(
    services: ApiServices, state: ExecutionState, step: str, *, run_id: RunId | None = None
) -> LoopRecord:
    """Return an epoch of a step's loop, the latest where no run is named; raises a 404."""
    step_state = state.steps.get(step)
    if run_id is None and step_state is not None:
        run_id = step_state.run_id
    if step_state is None or run_id is None:
        await execution_lookup.check_step_name(
            services,
            state.execution_id,
            path=state.path,
            version=state.catalog_version,
            step=step,
        )
        raise problems.build_not_found_error(
            f"step {step[:200]!r} of execution {state.execution_id} has not run",
            hint=f"noetl status {state.execution_id} lists loops",
        )
    envelope = await services.history.ledger.find_by_key(
        state.execution_id, idempotency_keys.build_loop_started_key(run_id)
    )
    if envelope is None or not isinstance(envelope.event, LoopStarted):
        raise await _build_no_loop_error(services.history, state, step, run_id)
    run = state.runs.get(run_id)
    stage_id = envelope.event.stage_id
    opened = None
    if stage_id is not None:
        key = idempotency_keys.build_stage_opened_key(stage_id)
        opened = await services.history.ledger.find_by_key(state.execution_id, key)
    is_opened = opened is not None and isinstance(opened.event, StageOpened)
    return LoopRecord(
        state=state,
        started=envelope.event,
        version=envelope.stream_version,
        live=run.loop if run is not None else None,
        policy=opened.event.frame_policy if is_opened else {},  # type: ignore[union-attr]  # just looked at
    )


async def _build_no_loop_error(
    history: HistoryStores, state: ExecutionState, step: str, run_id: RunId
) -> ApiError:
    entered = await history.ledger.find_by_key(state.execution_id, f"run/{run_id}/enter")
    is_own = entered is not None and isinstance(entered.event, StepEnter)
    if state.source is not None and not is_own:
        detail = f"step {step[:200]!r} was taken over from execution {state.source.execution_id}"
        hint = f"ask for the items of execution {state.source.execution_id}"
    else:
        detail = (
            f"step {step[:200]!r} of execution {state.execution_id} has no items: no loop of it "
            "began in its latest run"
        )
        hint = "items are those of a loop; chunks of a stream and groups of a reduce are none"
    return ApiError(HTTPStatus.NOT_FOUND, code="no_loop", detail=detail, hint=hint)


async def count_units(history: HistoryStores, record: LoopRecord) -> dict[str, int]:
    """Count the units of a loop by what became of them."""
    ended = await history.ledger.find_outcome(record.execution_id, record.run_id)
    if ended is not None and isinstance(ended.event, LoopDone | LoopFailed):
        stats = ended.event.stats
        return {
            "total": stats.total,
            "completed": stats.success,
            "failed": stats.failed,
            "cancelled": stats.cancelled,
        }
    loop_state = record.live
    if loop_state is None:
        # It was called off with its execution.
        rows = await history.projections.list_rows("loop", record.execution_id)
        return next((_count_from_row(row) for row in rows if row["run_id"] == record.run_id), {})
    return {
        "total": loop_state.total,
        "completed": loop_state.success,
        "failed": loop_state.failed,
        "running": loop_state.in_flight,
    }


def _count_from_row(row: dict[str, Any]) -> dict[str, int]:
    total, done_count, failed = row["total"] or 0, row["done"] or 0, row["failed"] or 0
    return {
        "total": total,
        "completed": done_count,
        "failed": failed,
        "cancelled": max(0, total - done_count - failed),
    }


async def read_layout(services: ApiServices, cut: CollectionCut) -> CollectionLayout | None:
    """Return how grouped items are laid out, or None where they are not grouped."""
    if cut.layout_ref is None:
        return None
    return codec.convert_value(
        await payload_reader.read_payload(services, cut.layout_ref), CollectionLayout
    )
