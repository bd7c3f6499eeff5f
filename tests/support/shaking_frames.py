"""What workers report of frames and slots in a shaken run: rows as sketched, windows by chance."""

import random
from collections.abc import Sequence

import msgspec
from tests.support.planning import closed, dry, opened
from tests.support.sketches import Node, Outcome
from tests.support.slices import an_error, frame_done

from noetl_contracts import ids
from noetl_contracts.commands.command_work import Command, FrameWork, ReduceWork, SlotWork
from noetl_contracts.commands.loop_collections import InnerCut, UnitsEnd
from noetl_contracts.ids import FrameId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult


def frame_answer(command: Command, node: Node, chance: random.Random) -> facts.FrameClosed:
    """Report a frame of a collection: all of its rows, or some and the rest left for later."""
    work = command.work
    assert isinstance(work, FrameWork)
    assert node.units is not None
    rows = node.units.outcomes[work.start : work.end]
    if "inside" in work.frame:
        return _whole_loop(command, rows, work)
    if work.frame.get("failed_max") is not None:
        rows = _until(rows, int(work.frame["failed_max"]))
    left = 0
    may_leave = not work.is_shard and node.units.process == "row" and not node.units.local
    if may_leave and len(rows) > 1 and chance.random() < 0.3:
        left = chance.randrange(1, len(rows))
    ran = rows[: len(rows) - left]
    failed = [item for item in ran if isinstance(item, str)]
    is_whole = node.units.process == "frame"
    return frame_done(
        command,
        row_count=len(ran),
        rows_left=left,
        rows_failed=len(ran) if is_whole and failed else len(failed),
        error=an_error(failed[0], "as planned") if failed else None,
        result=_results(len(ran)),
        patch={f"p_{node.name}": work.start + len(ran) - 1} if node.patch else {},
    )


def reduce_answer(command: Command, node: Node) -> facts.FrameClosed:
    """Report a group of parts as the sketch says that the body ends."""
    assert isinstance(command.work, ReduceWork)
    if isinstance(node.outcome, str):
        rows = command.work.end - command.work.start
        error = an_error(node.outcome, "as planned")
        return frame_done(command, rows_failed=rows, error=error, result=None)
    pipeline_result = PipelineResult(
        tasks={"t": TaskResult(kind="python", raw={"n": node.outcome})}, last="t"
    )
    return frame_done(
        command,
        result=ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(pipeline_result)
        ),
    )


class Queue(msgspec.Struct, kw_only=True):
    """The rows of a cursor's table: what is left of them, and what each frame took."""

    left: list[Outcome]
    taken: dict[FrameId, list[Outcome]] = msgspec.field(default_factory=dict)

    def claim(self, frame_id: FrameId, rows_max: int) -> list[Outcome]:
        """Take rows under an identity; a repetition finds the same ones."""
        outcomes = self.taken.get(frame_id)
        if outcomes is not None:
            return outcomes
        rows, self.left = self.left[:rows_max], self.left[rows_max:]
        if rows:
            self.taken[frame_id] = rows
        return rows


class SlotPlay:
    """A slot at work: it gives its facts one after the other, in order."""

    def __init__(self, command: Command, node: Node, queue: Queue) -> None:
        assert isinstance(command.work, SlotWork)
        self.command = command
        self._work = command.work
        self._node = node
        self._queue = queue
        self._index = self._work.next_index
        self._frames = 0
        self._rows: list[Outcome] | None = None

    @property
    def is_over(self) -> bool:
        """Tell whether the slot has found its queue empty."""
        return self._index < 0

    @property
    def is_open(self) -> bool:
        """Tell whether a frame runs."""
        return self._rows is not None

    def next(self) -> facts.Fact:
        """Open a frame, close the open one, or run dry."""
        frame_id = ids.derive_frame_id(
            self._work.stage_id, slot=self._work.slot, frame_index=self._index
        )
        if self._rows is not None:
            rows, self._rows = self._rows, None
            self._index += 1
            self._frames += 1
            return self._closed(self._index - 1, rows)
        found = self._queue.claim(frame_id, int(self._work.frame.get("max_rows", 1)))
        if not found:
            fact = dry(self.command, frames=self._frames, next_index=self._index)
            self._index = -1
            return fact
        self._rows = found
        return opened(self.command, self._index, rows=len(found))

    def _closed(self, index: int, rows: Sequence[Outcome]) -> facts.FrameClosed:
        failed = [row for row in rows if isinstance(row, str)]
        return closed(
            self.command,
            index,
            rows=len(rows),
            rows_failed=len(failed),
            error=an_error(failed[0], "as planned") if failed else None,
            result=_results(len(rows)),
        )


def _whole_loop(command: Command, rows: Sequence[Outcome], work: FrameWork) -> facts.FrameClosed:
    inside = msgspec.convert(work.frame["inside"], InnerCut)
    cut = inside.cut_items(len(rows))
    units = [rows[slice(*cut.get_unit_bounds(unit))] for unit in range(cut.units)]
    counts_units = inside.is_shard or work.frame.get("process") == "frame"
    bound = work.frame.get("failed_max")
    ended: list[Sequence[Outcome]] = []
    for unit in units:
        ended.append(unit)
        failed = [[item for item in each if isinstance(item, str)] for each in ended]
        many = sum(map(bool, failed)) if counts_units else sum(map(len, failed))
        if bound is not None and many > bound:
            break
    bad = [item for unit in ended for item in unit if isinstance(item, str)]
    units_bad = sum(any(isinstance(item, str) for item in unit) for unit in ended)
    return frame_done(
        command,
        row_count=sum(map(len, ended)),
        rows_failed=len(bad),
        error=an_error(bad[0], "as planned") if bad else None,
        result=_results(len(rows)),
        units=UnitsEnd(ok=len(ended) - units_bad, failed=units_bad),
    )


def _until(rows: Sequence[Outcome], bound: int) -> Sequence[Outcome]:
    """Return the rows that run until more than `bound` of them have failed."""
    failed = 0
    for index, item in enumerate(rows):
        failed += isinstance(item, str)
        if failed > bound:
            return rows[: index + 1]
    return rows


def _results(count: int) -> ResultEnvelope:
    loop_result = LoopResult(results=[None] * count)
    return ResultEnvelope(status="ok", context=result_envelope.build_inline_context(loop_result))
