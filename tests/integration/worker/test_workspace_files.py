"""Odd files, and tasks that meet: what a workspace keeps is what its tasks have left."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.attempting import attempt, data_of, site_of
from tests.support.calls import call_of
from tests.support.files import walk_folder
from tests.support.polling import eventually
from tests.support.working import Bench, bench

from noetl_contracts.execution_files import CHUNK_BYTES_MIN
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.payloads.tenant_payloads import TenantPayloads

pytestmark = pytest.mark.integration

LOOK = """
import hashlib, os
found = {}
for at, folders, names in os.walk('.'):
    for name in sorted(names):
        path = os.path.join(at, name)
        data = open(path, 'rb').read()
        digest = hashlib.sha256(data).hexdigest()[:8]
        found[path[2:]] = [len(data), digest, os.access(path, os.X_OK)]
    for name in folders:
        if not os.listdir(os.path.join(at, name)):
            found[os.path.join(at, name)[2:]] = 'empty'
return found
"""


@asynccontextmanager
async def two_workers(**settings: Any) -> AsyncIterator[tuple[Bench, Bench]]:
    store = MemoryPayloads()
    async with (
        asyncio.timeout(120),
        bench(store=store, shell_allowed=True, **settings) as one,
        bench(store=store, shell_allowed=True, **settings) as other,
    ):
        yield one, other


async def run_code(worker: Bench, code: str, *, name: str = "s", **about: Any) -> Any:
    return await data_of(worker, "python", {"code": code}, at=site_of(step=name, **about))


# What steps do one after another, on two workers in turn.
CHANGES = {
    "empty": ["open('a', 'w')", "import os; os.mkdir('b'); open('b/c', 'w')"],
    "kinds": [
        "import os; os.makedirs('a/b'); open('a/b/c', 'w').write('1')",
        "import shutil; shutil.rmtree('a'); open('a', 'w').write('2')",
        "import os; os.remove('a'); os.makedirs('a/b'); open('a/b/c', 'w').write('3')",
    ],
    "executable": [
        "open('a', 'w').write('1')",
        "import os; os.chmod('a', 0o755)",
        "import os; os.chmod('a', 0o644)",
    ],
    "set back": [
        "open('a', 'w').write('one')",
        (
            "import os; s = os.stat('a'); f = open('a', 'r+'); f.write('two'); f.close(); "
            "os.utime('a', ns=(s.st_atime_ns, s.st_mtime_ns))"
        ),
    ],
    "chunks": [
        f"open('a', 'wb').write(b'x' * {CHUNK_BYTES_MIN * 2})",
        f"open('a', 'ab').write(b'y' * {CHUNK_BYTES_MIN})",
        f"import os; os.truncate('a', {CHUNK_BYTES_MIN})",
        "import os; os.truncate('a', 0)",
    ],
    "sparse": [
        "f = open('a', 'wb'); f.truncate(50_000_000); f.close()",
        "f = open('a', 'r+b'); f.seek(40_000_000); f.write(b'x'); f.close()",
    ],
    "links": [
        "import os; open('a', 'w').write('1'); os.link('a', 'b')",
        "open('b', 'w').write('2')",
        "open('a', 'a').write('3')",
    ],
    "names": [
        "open('e\\u0301', 'w').write('1'); open('\\u00e9', 'w').write('22')",
        "open('E', 'w').write('333'); open('e', 'w').write('4444'); open(' ', 'w')",
        "open('x' * 255, 'w').write('1')",
    ],
    "rights": [
        (
            "import os; os.mkdir('ro'); open('ro/a', 'w'); os.chmod('ro/a', 0o400); "
            "os.chmod('ro', 0o500)"
        ),
        "open('ro/a', 'w').write('new')",
    ],
    "many": [
        "[open(f'f{n}', 'w').write(str(n)) for n in range(600)]",
        "import os; [os.remove(f'f{n}') for n in range(0, 600, 2)]",
    ],
    "folders": ["import os; os.makedirs('empty/inner'); open('a', 'w')", "open('b', 'w')"],
    "compiled": [
        "import os; os.mkdir('__pycache__'); open('__pycache__/a', 'w'); open('b', 'w')",
        "open('c', 'w')",
    ],
}


@pytest.mark.parametrize("codes", CHANGES.values(), ids=CHANGES)
async def test_every_worker_sees_the_same_files(codes: list[str]) -> None:
    async with two_workers() as workers:
        for number, code in enumerate(codes):
            await run_code(workers[number % 2], f"{code}\nreturn 1", activation=number + 1)
            found = [await run_code(worker, LOOK, name="look") for worker in workers]
            assert found[0] == found[1]
            assert found[0]
            assert "empty" not in found[0].values()


async def test_files_come_from_their_steps_content() -> None:
    async with two_workers() as (item, other):
        await run_code(item, "import os; os.mkdir('a'); open('a/b', 'w').write('deep'); return 1")
        put = {"action": "put", "uri": "a", "data": 1}
        refused = await attempt(other, "artifact", put, at=site_of(step="put"))
        assert refused.error is not None
        assert (refused.error.kind, refused.error.retryable) == ("storage_access", False)
        below = {"action": "put", "uri": "a/b/c", "data": 1}
        refused = await attempt(other, "artifact", below, at=site_of(step="put"))
        assert refused.error is not None
        assert "a part of its path is a file" in refused.error.message
        assert await run_code(other, "return open('a/b').read()") == "deep"


async def test_a_file_in_the_place_of_another_tasks_folder_is_a_conflict(tmp_path: Path) -> None:
    go = tmp_path / "go"
    slow = (
        "import os, time; open('a', 'w').write('x'); open('begun', 'w')\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "return 1"
    )
    async with two_workers(task_folders=(str(tmp_path),)) as (item, other):
        python = item.tools.python
        waiting = asyncio.create_task(
            attempt(item, "python", {"code": slow}, at=site_of(step="slow"))
        )

        async def has_begun() -> bool:
            return any(path.name == "begun" for path in walk_folder(python._directory))

        await eventually(has_begun)
        await run_code(other, "import os; os.mkdir('a'); open('a/b', 'w'); return 1", name="quick")
        go.touch()
        refused = await waiting
        assert refused.error is not None
        assert refused.error.kind == "file_conflict"
        assert "step 'quick'" in refused.error.message
        assert list(await run_code(item, LOOK)) == ["a/b"]


async def test_executions_that_share_a_process_keep_their_files_apart() -> None:
    async with two_workers(python_processes_max=1) as (item, other):
        ids = [str(number) for number in range(700, 706)]

        async def fill(execution_id: str, number: int) -> None:
            code = f"open('f{number}', 'w').write('{execution_id}'); return 1"
            await run_code(item, code, execution_id=execution_id, unit=f"item-{number}")

        await asyncio.gather(*(fill(one_id, number) for number in range(4) for one_id in ids))
        for one_id in ids:
            code = "import os; return {name: open(name).read() for name in sorted(os.listdir())}"
            found = await run_code(other, code, execution_id=one_id)
            assert found == {f"f{number}": one_id for number in range(4)}


async def test_another_tenant_finds_no_file_of_an_execution() -> None:
    async with two_workers() as (item, _):
        await run_code(item, "open('a', 'w'); return 1")
        for about in ({"tenant_id": TenantId("evil")}, {"organization_id": OrganizationId("evil")}):
            assert await run_code(item, LOOK, **about) == {}


ESCAPES = {
    "deep": "[(os.mkdir('d'), os.chdir('d')) for _ in range(1100)]",
    "link": "os.mkdir('a'); os.symlink('/etc', 'a/b')",
    "replaced": "os.rename('../files', '../old'); os.symlink('/etc', '../files')",
    "file": "os.rename('../files', '../old'); open('../files', 'w')",
    "named": "open(b'\\xff', 'w')",
}


@pytest.mark.parametrize("ends", ["return 1", "raise ValueError('x')", "os._exit(3)"])
@pytest.mark.parametrize("code", ESCAPES.values(), ids=ESCAPES)
async def test_what_a_task_makes_of_its_folder_harms_no_later_task(code: str, ends: str) -> None:
    async with two_workers(python_processes_max=1) as (item, _):
        await run_code(item, "open('kept', 'w').write('kept'); return 1")
        spoil = f"import os\n{code}\n{ends}"
        refused = await attempt(item, "python", {"code": spoil}, at=site_of(step="spoil"))
        assert refused.error is not None
        assert refused.error.kind != "internal"
        assert list(await run_code(item, LOOK)) == ["kept"]


async def test_a_process_that_outlives_its_script_writes_to_no_later_task() -> None:
    script = (
        "echo kept > kept; mkdir d; echo x > d/x; "
        "setsid -f sh -c 'exec >/dev/null 2>&1; echo $$ > pid; "
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo late > late; sleep 0.2; done'; "
        "until test -s pid; do :; done"
    )
    async with two_workers() as (item, _):
        await data_of(item, "shell", {"cmds": script}, at=site_of(step="leave"))
        for _ in range(3):
            found = await data_of(item, "shell", {"cmds": "cat late 2>&1; sleep 0.3; pwd"})
        root = item.tools.lender._workspaces.root
        assert list(root.iterdir()) == []
        assert found["stdout"].count("\n") <= 2


ENDLESS = "select count(*) from range(1000000000000) a where a.range % 7 = 3"
LONG: dict[str, dict[str, Any]] = {
    "duckdb": {"query": ["create table t as select 1", ENDLESS]},
    "python": {"code": "open('a', 'w').write('x'); import time; time.sleep(60)"},
    "shell": {"cmds": "echo x > a; sleep 60"},
    "transfer": {
        "source": {"type": "data", "data": [{"i": n} for n in range(200_000)]},
        "target": {"type": "file", "uri": "a.parquet"},
        "chunk_size": 10,
    },
}


@pytest.mark.parametrize("kind", LONG)
async def test_a_cancelled_task_leaves_no_file(kind: str) -> None:
    async with two_workers() as (item, other):
        for pause_s in (0.0, 0.05, 0.5):
            running = asyncio.create_task(attempt(item, kind, LONG[kind]))
            await asyncio.wait([running], timeout=pause_s)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()
            assert await run_code(other, LOOK) == {}
        root = item.tools.lender._workspaces.root
        assert [path for path in root.rglob("*") if path.is_file()] == []


class Away:
    """A store that fails, or is left, at the n-th call of a kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, *, at: int) -> None:
        self.calls = 0
        self.reached = asyncio.Event()
        self.is_hanging = False
        real = getattr(TenantPayloads, method)

        async def call(payloads: TenantPayloads, *args: Any, **given: Any) -> Any:
            self.calls += 1
            if self.calls != at:
                return await real(payloads, *args, **given)
            self.reached.set()
            if self.is_hanging:
                await asyncio.Event().wait()
            raise ToolFailure(build_error("storage_access", "the store is away", source="store"))

        monkeypatch.setattr(TenantPayloads, method, call)


WRITE = "open('a', 'wb').write(b'x' * 300_000); open('b', 'w').write('b'); return 1"


@pytest.mark.parametrize("method", ["store_payload", "put_named"])
@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_publication_that_is_broken_off_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, method: str, *, is_cancelled: bool
) -> None:
    async with two_workers() as (item, other):
        away = Away(monkeypatch, method, at=1 if method == "put_named" else 2)
        away.is_hanging = is_cancelled
        running = asyncio.create_task(attempt(item, "python", {"code": WRITE}, visit=1))
        await asyncio.wait_for(away.reached.wait(), 60)
        if is_cancelled:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            error = (await running).error
            assert error is not None
            assert error.kind == "storage_access"
        assert await run_code(other, LOOK) == {}
        assert await run_code(item, LOOK) == {}
        await data_of(item, "python", {"code": WRITE}, visit=1)
        assert sorted(await run_code(other, LOOK)) == ["a", "b"]


async def test_of_two_runs_of_one_attempt_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, time; open('a', 'a').write('x'); time.sleep(0.5); return os.urandom(4).hex()"
    async with two_workers() as workers:
        found = await asyncio.gather(
            *(data_of(worker, "python", {"code": code}, visit=1) for worker in workers)
        )
        assert found[0] == found[1]
        assert await run_code(workers[0], "return open('a').read()") == "x"


@pytest.mark.parametrize("name", ["a//b", "./a/b", "file://a/b", "a/b/"])
async def test_a_name_is_read_as_the_path_that_it_means(name: str) -> None:
    async with two_workers() as (item, other):
        await data_of(item, "artifact", {"action": "put", "uri": name, "data": 1})
        assert list(await run_code(other, LOOK)) == ["a/b"]


class TakenFiles:
    """Takes the rows of a stream."""

    window_rows = 10

    async def write_rows(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        del rows, columns


async def test_streams_that_share_a_database_and_read_a_file_take_turns(tmp_path: Path) -> None:
    fields = {
        "database": "d.duckdb",
        "inputs": {"rows": {"path": "in.csv"}},
        "query": "INSERT INTO t SELECT i FROM rows RETURNING i",
    }
    async with two_workers(work_directory=str(tmp_path)) as workers:
        await run_code(workers[0], "open('in.csv', 'w').write('i\\n1\\n'); return 1")
        create = {"database": "d.duckdb", "query": "CREATE TABLE t (i INTEGER)"}
        await data_of(workers[0], "duckdb", create)
        calls = [structs.replace(call_of("duckdb", fields), sink=TakenFiles()) for _ in range(8)]
        found = await asyncio.gather(
            *(workers[number % 2].tools.run(item) for number, item in enumerate(calls))
        )
        assert [item.error for item in found] == [None] * 8
        count = {"database": "d.duckdb", "query": "SELECT count(*) AS n FROM t"}
        assert (await data_of(workers[1], "duckdb", count))["rows"] == [{"n": 8}]
