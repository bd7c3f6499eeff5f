"""Writers and files that a thread is at while the task around it is called off."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from msgspec import structs
from tests.support.attempting import attempt, files_of
from tests.support.calls import call_of
from tests.support.polling import eventually
from tests.support.working import Bench, bench

from noetl_playbook.model.playbook import Output
from noetl_worker.tools.tables import stored_parts

# How long a write lasts, for somebody to close its writer meanwhile.
OPEN_S = 0.5
ROWS = [{"i": 1}, {"i": 2}]
TARGET = {"type": "file", "uri": "noetl://files/out/a.parquet", "mode": "replace"}


class Watched(pyarrow.parquet.ParquetWriter):
    """A writer whose every write lasts, unless it is closed meanwhile, and which tells of that."""

    begun = threading.Event()
    closing = threading.Event()
    is_writing = False
    was_closed_meanwhile = False

    @classmethod
    def renew(cls) -> None:
        cls.begun, cls.closing = threading.Event(), threading.Event()
        cls.is_writing = cls.was_closed_meanwhile = False

    def write_table(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        cls.is_writing = True
        cls.begun.set()
        cls.closing.wait(OPEN_S)
        super().write_table(*args, **kwargs)
        cls.is_writing = False

    def close(self) -> None:
        cls = type(self)
        cls.was_closed_meanwhile |= cls.is_writing
        cls.closing.set()
        super().close()


class Full(Watched):
    """A writer that finds no room for its end."""

    def close(self) -> None:
        is_new = self.is_open
        super().close()
        if is_new:
            raise OSError(28, "No space left on device")


@pytest.fixture
async def worker(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    monkeypatch.setattr(stored_parts, "SMALL_BYTES", 1)
    monkeypatch.setattr(stored_parts, "GROUP_BYTES", 1)
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture(params=[Watched, Full])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    kind: type[Watched] = request.param
    kind.renew()
    monkeypatch.setattr(pyarrow.parquet, "ParquetWriter", kind)
    return kind


SOURCES = {
    "by rows": {"type": "data", "data": ROWS},
    "by columns": {"type": "postgres", "query": "select generate_series(1, 9) as i"},
}


async def call_off(running: "asyncio.Task[Any]", begun: threading.Event, *, times: int = 1) -> None:
    """Cancel a task once it has begun to write."""

    async def has_begun() -> bool:
        return begun.is_set()

    await eventually(has_begun)
    for _ in range(times):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
async def test_a_file_is_closed_when_its_write_has_ended(
    worker: Bench, tmp_path: Path, writer: type[Watched], source: dict[str, Any], times: int
) -> None:
    given = {"source": source, "target": TARGET}
    running = asyncio.create_task(attempt(worker, "transfer", given, auth="db"))
    await call_off(running, writer.begun, times=times)
    assert not writer.was_closed_meanwhile
    assert list((files_of(tmp_path) / "out").iterdir()) == []


class Ending(pyarrow.parquet.ParquetWriter):
    """A writer whose end takes its time."""

    begun = threading.Event()

    def close(self) -> None:
        self.begun.set()
        threading.Event().wait(OPEN_S)
        super().close()


async def test_a_file_whose_end_is_called_off_gets_no_name(
    worker: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyarrow.parquet, "ParquetWriter", Ending)
    given = {"source": SOURCES["by rows"], "target": TARGET}
    await call_off(asyncio.create_task(attempt(worker, "transfer", given)), Ending.begun)
    assert list((files_of(tmp_path) / "out").iterdir()) == []


async def test_a_timeout_stays_one_when_there_is_no_room_for_the_end(
    worker: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Full.renew()
    monkeypatch.setattr(pyarrow.parquet, "ParquetWriter", Full)
    given = {"source": {"type": "data", "data": ROWS * 10}, "target": TARGET, "chunk_size": 1}
    found = await attempt(worker, "transfer", given, timeout_s=4 * OPEN_S)
    assert Full.begun.is_set()
    assert not Full.was_closed_meanwhile
    assert found.error is not None
    assert (found.error.kind, found.error.source) == ("timeout", "transfer")
    assert list((files_of(tmp_path) / "out").iterdir()) == []


@pytest.mark.parametrize("kind", ["duckdb", "postgres"])
async def test_a_part_is_closed_when_its_write_has_ended(
    worker: Bench, writer: type[Watched], kind: str
) -> None:
    query = "SELECT i FROM generate_series(1, 20000) AS r (i)"
    fields = {"query": query} | ({"database": ":memory:"} if kind == "duckdb" else {})
    call = structs.replace(
        call_of(kind, fields, auth="db" if kind == "postgres" else None),
        may_spread=True,
        output=Output(format="parquet"),
    )
    await call_off(asyncio.create_task(worker.tools.run(call)), writer.begun)
    assert not writer.was_closed_meanwhile
