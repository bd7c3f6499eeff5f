"""The outside world that tasks reach into: slow, sometimes out of reach, and it keeps accounts."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

from tests.simulation.fleet import Process

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.calls.call import RowSink as Taker

_SLOW_S = 1.0
_CLAIM_S = 0.2
_LONG_S = 20.0
_FLAKY_SHARE = 0.3

# Between two rows of a stream.
_ROW_S = 0.3
_BREAKS_SHARE = 0.05

Row = tuple[str, str, str, int | None]


class Sink:
    """What arrived outside: rows under keys that make a repetition the same row."""

    def __init__(self) -> None:
        self.row_by_key: dict[str, Row] = {}
        self.repeated = 0
        # How often each row of a frame was done, by the frame that claimed it and its place there.
        self.times_by_row: Counter[tuple[str, int]] = Counter()

    def take(self, key: str, row: Row) -> bool:
        """Keep a row; False when its key is another row's."""
        self.repeated += key in self.row_by_key
        return self.row_by_key.setdefault(key, row) == row


class Site:
    """The tool of one worker's process."""

    def __init__(self, sink: Sink, process: Process) -> None:
        self._sink = sink
        self._process = process

    def find_missing_walls(self) -> None:
        """Say that no walls of a task were tried."""

    async def run(self, call: Call) -> Outcome:
        """Take some time, have the effect, and say so; or fail before it."""
        if call.sink is not None:
            return await self._stream(call, call.sink)
        process = self._process
        chance, at = process.fate.chance, call.site
        is_long = process.fate.happens("long")
        seconds = chance.random() * (_LONG_S if is_long else _SLOW_S)
        if is_long and process.fate.happens("cut_at_work"):
            # It comes back about when there is something to report, and perhaps too late for that.
            process.cut_off("broker", seconds * (0.7 + chance.random() * 0.6))
        await asyncio.sleep(seconds)
        if call.input["flaky"] and not process.fate.is_healed and chance.random() < _FLAKY_SHARE:
            return _dead()
        row = (at.execution_id, at.step, at.unit, at.row_index)
        process.fate.note(process.name, "reaches out for", *row)
        if at.row_index is not None:
            self._sink.times_by_row[at.unit, at.row_index] += 1
        if not self._sink.take(call.idempotency_key, row):
            process.witness.object(f"{row} has the key of another effect")
        data: dict[str, Any] = {"n": call.input["n"], "echo": call.input["token"]}
        return Outcome(data=data)

    async def _stream(self, call: Call, sink: Taker) -> Outcome:
        """Give rows away one by one; the line may break between any two."""
        process, asked = self._process, call.input
        chance = process.fate.chance
        for index in range(asked["n"]):
            is_long = process.fate.happens("long")
            await asyncio.sleep(chance.random() * (_LONG_S if is_long else _ROW_S))
            if asked["flaky"] and not process.fate.is_healed and chance.random() < _BREAKS_SHARE:
                return _dead()
            try:
                await sink.write_rows([{"i": index, "echo": asked["token"]}])
            except ToolFailure as problem:
                return Outcome(error=problem.error)
        return Outcome()


class Claims:
    """The rows of queues, numbered, and the frames that claimed them."""

    def __init__(self) -> None:
        self._frames_by_queue: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)

    def take(self, queue: tuple[str, str], frame_id: str, *, rows: int, rows_max: int) -> list[int]:
        """Claim what nobody has, or again what this frame has claimed before."""
        frames = self._frames_by_queue[queue]
        if frame_id not in frames:
            first = sum(map(len, frames.values()))
            if first == rows:
                return []
            frames[frame_id] = list(range(rows))[first : first + rows_max]
        return frames[frame_id]


class Table:
    """The database of one worker's process, which does nothing but hand out rows."""

    def __init__(self, claims: Claims, process: Process) -> None:
        self._claims = claims
        self._process = process

    async def run(self, call: Call) -> Outcome:
        """Claim rows; the line may break before the claim, or with its answer."""
        process, at = self._process, call.site
        assert at.frame_id is not None, "only claims come here"
        await asyncio.sleep(process.fate.chance.random() * _CLAIM_S)
        if process.fate.happens("refused"):
            return _dead()
        rows, rows_max = call.fields["params"]
        queue = (at.execution_id, at.step)
        taken = self._claims.take(queue, at.frame_id, rows=rows, rows_max=rows_max)
        process.fate.note(process.name, "claims", *queue, at.frame_id, *taken)
        if process.fate.happens("lost_reply"):
            return _dead()
        return Outcome(data={"rows": [{"at": item} for item in taken]})


def _dead() -> Outcome:
    return Outcome(error=build_error("connection", "the line is dead", source="outside"))
