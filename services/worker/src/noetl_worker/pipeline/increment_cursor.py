"""How far a step that reads increments has come: the cursor of the task whose rows count."""

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from noetl_contracts import spread_table
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.state_values import Increment, ProposedState
from noetl_playbook.model.playbook import Incremental, Step
from noetl_playbook.sections.increments import find_reading_task
from noetl_playbook.views.result_view import find_body
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.size_limits.refusals import PayloadUnreadable
from noetl_worker.domain import cursor_values
from noetl_worker.domain.cursor_values import CursorReading, join_readings
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import ABSENT, find_value
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.pipeline.compiled_tasks import CompiledTask
from noetl_worker.pipeline.parked_work import PipelinePosition
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.tables.cursor_scan import CursorScan

if TYPE_CHECKING:
    from noetl_storage.arrow import encoding
else:
    encoding = LazyModule("noetl_storage.arrow.encoding")

_TRANSFER = "transfer"
# Rows below this are looked through at once: a thread would cost more.
_ROWS_AT_ONCE_MAX = 2_000


class IncrementCursor:
    """Reads the cursor of each attempt of one task, and keeps it with the pipeline's position."""

    def __init__(self, incremental: Incremental, increment: Increment, task: str) -> None:
        self._rows_path = incremental.rows
        self._increment = increment
        self._cursor = incremental.cursor
        self._task = task

    def prepare_call(self, call: Call) -> Call:
        """Have a transfer look through the rows that it moves."""
        if call.task != self._task or call.kind != _TRANSFER:
            return call
        return structs.replace(call, increment=self._begin_scan())

    async def read_outcome(
        self,
        task: CompiledTask,
        outcome: Outcome,
        walk: PipelinePosition,
        payloads: TenantPayloads,
    ) -> Outcome:
        """Note how far an attempt has read; one whose rows have no such cursor has failed."""
        if task.name != self._task or outcome.error is not None:
            return outcome
        try:
            reading = await self._scan_data(task, outcome.data, payloads)
        except ToolFailure as problem:
            return structs.replace(outcome, error=problem.error)
        _note_reading(walk, reading, visit=walk.visits[walk.position], is_page=_is_page(task))
        return outcome

    def build_proposal(self, walk: PipelinePosition) -> ProposedState:
        """Say how far the step has read."""
        reading = join_readings(walk.read_before, walk.read_now)
        return ProposedState(name=self._increment.name, value=reading.value, rows=reading.rows)

    def _begin_scan(self) -> CursorScan:
        return CursorScan(self._cursor, self._increment.type)

    async def _scan_data(
        self, task: CompiledTask, data: Any, payloads: TenantPayloads
    ) -> CursorReading:
        scan = self._begin_scan()
        if task.kind == _TRANSFER:
            result = data.get(cursor_values.RESULT_KEY) if isinstance(data, dict) else None
            if result is None:
                text = "an earlier release has moved these rows and not kept how far they reach"
                raise ToolFailure(build_error("validation", f"{text}: run the playbook again"))
            scan.note_reading(result["cursor"], result["rows"])
            return scan.reading
        rows = self._find_rows(task, data)
        if spread_table.is_spread_marker(rows):
            await _scan_parts(rows, scan, payloads)
        elif len(rows) > _ROWS_AT_ONCE_MAX:
            await asyncio.to_thread(scan.scan_rows, rows)
        else:
            scan.scan_rows(rows)
        return scan.reading

    def _find_rows(self, task: CompiledTask, data: Any) -> Any:
        """Return the rows of a result, or what stands for them; raises `ToolFailure`."""
        raw = None if data is UNSET else data
        if task.kind == "spark" and isinstance(raw, dict) and "written" in raw:
            text = (
                f"task {task.name!r} has written its rows into a dataset, and its result has no "
                f"cursor: let a task after it select max({self._cursor}) AS {self._cursor}, and "
                "name it in incremental.task"
            )
            raise ToolFailure(build_error("validation", text))
        path = self._rows_path or _find_merge_path(task)
        body = find_body(task.kind, raw)
        rows = find_value(raw, body, path) if path else _find_plain_rows(raw, body)
        if isinstance(rows, list) or spread_table.is_spread_marker(rows):
            return rows
        at = f"at {path!r}" if path else "of its own"
        text = (
            f"task {task.name!r} has no rows {at}: write where its list is as incremental.rows, "
            "such as rows: orders"
        )
        raise ToolFailure(build_error("validation", text))


def find_increment_cursor(command: Command, step: Step) -> IncrementCursor | None:
    """Return what reads a command's increments, None for a step that has none."""
    increment, incremental = command.slice.increment, step.incremental
    if increment is None or incremental is None:
        return None
    task = find_reading_task(step.tool, incremental.task)
    assert task is not None, "the playbook was checked to have the task"
    return IncrementCursor(incremental, increment, task.name)


def _find_plain_rows(raw: Any, body: Any) -> Any:
    for value in (raw, body):
        if isinstance(value, list):
            return value
        if isinstance(value, dict) and "rows" in value:
            return value["rows"]
    return ABSENT


def _find_merge_path(task: CompiledTask) -> str | None:
    """Return where the pages of a task have the rows that it collects."""
    accumulate = None if task.output is None else task.output.accumulate
    return accumulate.merge_path if accumulate is not None and accumulate.enabled else None


def _is_page(task: CompiledTask) -> bool:
    """Tell whether each attempt of a task is one of the pages that it collects."""
    accumulate = None if task.output is None else task.output.accumulate
    return accumulate is not None and accumulate.enabled


def _note_reading(
    walk: PipelinePosition, reading: CursorReading, *, visit: int, is_page: bool
) -> None:
    """Keep a reading: it replaces that of an attempt which is made again, and follows others."""
    if walk.read_visit != visit or is_page:
        walk.read_before = join_readings(walk.read_before, walk.read_now)
    walk.read_visit, walk.read_now = visit, reading


async def _scan_parts(marker: dict[str, Any], scan: CursorScan, payloads: TenantPayloads) -> None:
    """Look through a stored table, part after part, by its one column."""
    for part in spread_table.read_parts(marker):
        data = await payloads.read_payload(part)
        try:
            table = await asyncio.to_thread(_read_table, data)
        except PayloadUnreadable as problem:
            raise ToolFailure(build_error("schema", str(problem))) from problem
        await asyncio.to_thread(scan.scan_batch, table)


def _read_table(data: bytes) -> Any:
    # In the thread that calls it: Arrow may be loaded here first.
    return encoding.read_table(data)
