"""The python tool: three contracts, its limits, and what user code cannot reach."""

import asyncio
import os
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.attempting import site_of
from tests.support.calls import VISITS
from tests.support.polling import eventually
from tests.support.processes import count_running, make_nap
from tests.support.working import EXECUTION, ORGANIZATION, Bench, bench, command_of, step_of

from noetl_cli.stack import task_walls
from noetl_contracts import codec
from noetl_contracts.errors import summarize_error
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.tools.calls.call import Call, Outcome, Timeout


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(python_processes_max=2, python_memory_bytes=512 * 1024**2) as found:
        yield found


async def run(
    worker: Bench,
    code: str,
    *,
    tenant: str = "acme",
    organization: OrganizationId = ORGANIZATION,
    timeout_s: float = 20,
    fields: dict[str, Any] | None = None,
    named: dict[str, Any] | None = None,
    **given: Any,
) -> Outcome:
    site = site_of(tenant_id=TenantId(tenant), organization_id=organization)
    return await worker.tools.run(
        Call(
            site=site,
            task="t",
            kind="python",
            attempt=1,
            visit=next(VISITS),
            fields={"code": code, **(fields or {})},
            input=given,
            auth=None,
            timeout=Timeout(total=timeout_s),
            iterator={"who": "ann"},
            named=named or {},
        )
    )


async def test_a_worker_knows_which_walls_its_tasks_lack_once_one_has_run(worker: Bench) -> None:
    assert worker.tools.python.find_missing_walls() is None
    assert (await run(worker, "return 1")).data == 1
    missing = worker.tools.python.find_missing_walls()
    assert missing is not None
    assert set(missing) <= set(task_walls.PURPOSES)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("result = {'sq': n * n}", {"sq": 4}),
        ("if n > 1:\n  return {'big': True}\nreturn {'big': False}", {"big": True}),
        ("def main(n):\n  return n + 1", 3),
        ("async def main(n, extra=5):\n  await asyncio.sleep(0)\n  return n + extra", 7),
        ("def main(**kw):\n  return kw", {"n": 2}),
        ("result = 'module'\ndef main(n):\n  pass", "module"),
        ("await asyncio.sleep(0)\nresult = n", 2),
        ("x = await asyncio.sleep(0, 'awaited')\nreturn x", "awaited"),
        ("n = n + 1\nreturn n", 3),
        ("def f():\n  return n\nresult = [f() for _ in range(2)]", [2, 2]),
        ("x = 5", None),
        ("def f():\n  result = 5\nf()", None),
        ("yield {'a': 1}\nyield [{'a': 2}]", [{"a": 1}, {"a": 2}]),
        ("return [who, execution_id, input_data, args is inputs]", None),
        ("return math.floor(json.loads('1.5'))", 1),
        ("async def agen():\n  yield 1\nxs = [x async for x in agen()]\nreturn xs", [1]),
        ("async def agen():\n  yield n\nresult = [x async for x in agen()]", [2]),
        ("async with asyncio.timeout(5):\n  result = n", 2),
        ("def main():\n  yield {'a': n}", [{"a": 2}]),
        ("async def main():\n  yield {'a': n}", [{"a": 2}]),
        ("if n > 5:\n  result = 1", None),
        ("def main(n, /, *, who):\n  return [n, who]", [2, "ann"]),
        ("def main(args, inputs, input_data):\n  return args is inputs is input_data", True),
        ("def main(who='nobody', other='default'):\n  return [who, other]", ["ann", "default"]),
        ("k = 3\ndef inner():\n  return n + k\ndef main():\n  return inner()", 5),
        ("return {(1, 2)}, datetime.date(2026, 1, 2), float('nan'), b'x'", None),
    ],
)
async def test_the_three_contracts(worker: Bench, code: str, expected: Any) -> None:
    found = await run(worker, code, n=2)
    assert found.error is None, found.error
    data = found.data["rows"] if isinstance(found.data, dict) and "rows" in found.data else None
    if code.startswith("return [who"):
        expected = ["ann", EXECUTION, {"n": 2}, True]
    if code.startswith("return {(1"):
        expected = [[[1, 2]], "2026-01-02", "NaN", "eA=="]
    assert (data if data is not None else found.data) == expected


async def test_yielded_rows_have_the_columns_of_all_rows(worker: Bench) -> None:
    found = await run(worker, "yield {'a': 1}\nyield [{'b': 2, 'a': 3}, {'c': 4}]", n=2)
    assert found.data["columns"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("code", "kind", "exception"),
    [
        ("raise ValueError('no')", "transform", "ValueError"),
        ("syntax error", "transform", "SyntaxError"),
        ("raise TimeoutError('late')", "timeout", "TimeoutError"),
        ("raise ConnectionResetError('cut')", "connection", "ConnectionResetError"),
        ("assert n == 3, 'not three'", "assertion", "AssertionError"),
        ("def main(other): pass", "transform", "TypeError"),
        ("sys.exit(3)", "transform", "SystemExit"),
        ("x = []\nx.append(x)\nresult = x", "transform", "ValueError"),
    ],
)
async def test_exceptions_become_errors(
    worker: Bench, code: str, kind: str, exception: str
) -> None:
    found = await run(worker, code, n=2)
    assert found.error is not None
    assert (found.error.kind, found.error.exception_type) == (kind, exception)
    assert summarize_error(codec.to_builtins(found.error)).startswith(exception)


async def test_endless_code_is_ended_and_the_next_call_works(worker: Bench) -> None:
    found = await run(worker, "while True: pass", timeout_s=0.5)
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("timeout", True)
    assert (await run(worker, "return 1")).data == 1


@pytest.mark.parametrize("code", ["x = bytearray(1024**3)", "result = [0] * 10**9"])
async def test_memory_has_a_limit(worker: Bench, code: str) -> None:
    found = await run(worker, code)
    assert found.error is not None
    assert found.error.exception_type in {"MemoryError", "ProcessEnded"}
    assert (await run(worker, "return 1")).data == 1


async def test_a_process_that_ends_itself_is_replaced(worker: Bench) -> None:
    found = await run(worker, "os._exit(3)")
    assert found.error is not None
    assert "exit code 3" in found.error.message
    assert (await run(worker, "return 1")).data == 1


async def test_the_environment_of_the_worker_is_not_there(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_WORKER_SECRET_KEY", "canary-canary-canary")
    found = await run(worker, "return dict(os.environ)")
    assert set(found.data) == {"PATH", "HOME", "TMPDIR", "LANG"}


async def test_the_pipes_of_the_worker_are_not_standard_input_and_output(worker: Bench) -> None:
    code = "os.write(1, b'garbage')\nprint('log')\nreturn [sys.stdin.read(), os.getcwd() != '/']"
    assert (await run(worker, code)).data == ["", True]
    assert (await run(worker, "return 1")).data == 1


async def test_tenants_do_not_share_a_process(worker: Bench) -> None:
    code = "seen = getattr(sys, 'left_behind', None)\nsys.left_behind = 'mine'\nreturn seen"
    assert (await run(worker, code, tenant="acme")).data is None
    assert (await run(worker, code, tenant="acme")).data == "mine"
    for tenant in ("other", "third"):
        assert (await run(worker, code, tenant=tenant)).data is None


async def test_calls_run_at_once_up_to_the_number_of_processes(worker: Bench) -> None:
    code = "time.sleep(0.2)\nreturn os.environ['HOME']"
    found = await asyncio.gather(*(run(worker, code) for _ in range(4)))
    assert len({item.data for item in found}) == 2


async def test_inputs_are_private_copies(worker: Bench) -> None:
    given = {"xs": [1]}
    await run(worker, "xs.append(2)\nreturn xs", **given)
    assert given == {"xs": [1]}


async def test_libraries_can_be_named(worker: Bench) -> None:
    fields = {"libs": {"h": "html", "esc": {"from": "html", "import": "escape"}}}
    assert (await run(worker, "return esc('<') + h.escape('>')", fields=fields)).data == "&lt;&gt;"
    missing = await run(worker, "return 1", fields={"libs": ["no_such_thing"]})
    assert missing.error is not None
    assert missing.error.kind == "missing_dependency"


async def test_code_sees_the_context_that_it_mentions(worker: Bench) -> None:
    named = {"context": {"a": {"x": 1}}, "ctx": {"n": 2}}
    code = "def main(context, ctx):\n  return context['a']['x'] + ctx['n']"
    assert (await run(worker, code, named=named)).data == 3


async def test_what_is_printed_is_no_result(worker: Bench) -> None:
    assert (await run(worker, "print('x' * 100_000)\nlogging.info('y')\nreturn 1")).data == 1


@pytest.mark.parametrize("field", ["code_b64", "inline", "file"])
async def test_code_comes_from_wherever_it_is(tmp_path: Path, field: str) -> None:
    # Text from outside the playbook is no template.
    text = "n" if field == "inline" else "{{ n }}"
    code = f"def main(n, context):\n  return [n, context['ctx']['k'], '{text}']"
    (tmp_path / "m.py").write_text(code)
    source = {
        "code_b64": {"code_b64": b64encode(code.encode()).decode()},
        "inline": {"script": {"source": {"type": "inline", "code": code}}},
        "file": {"script": {"uri": "m.py"}},
    }[field]
    step = {**step_of("- {step: s, tool: {kind: python, code: x, input: {n: 5}}}")}
    (task,) = step["tool"]
    step["tool"] = [{**task, "fields": source}]
    async with bench(script_directory=str(tmp_path)) as worker:
        found = await worker.run(command_of(step, ctx={"k": 6}))
        (fact,) = [item for item in found if isinstance(item, CommandCompleted)]
        assert await worker.value(fact.result) == [5, 6, text]


async def test_context_is_read_only(worker: Bench) -> None:
    named = {"context": {"a": 1}}
    for code in ("context['a'] = 2", "context.update(a=2)", "del context['a']", "context.pop('a')"):
        found = await run(worker, code, named=named)
        assert found.error is not None, code
        assert "read-only" in found.error.message
    assert (await run(worker, "return json.dumps(context)", named=named)).data == '{"a": 1}'


async def test_an_input_wins_over_every_other_name(worker: Bench) -> None:
    code = "def main(input_data, who, execution_id):\n  return [input_data, who, execution_id]"
    found = await run(worker, code, input_data="mine", who="me", execution_id=7)
    assert found.data == ["mine", "me", 7]


async def test_what_main_asks_for_and_nobody_gives_is_named(worker: Bench) -> None:
    found = await run(worker, "def main(other): pass")
    assert found.error is not None
    assert "main() asks for 'other'" in found.error.message


async def test_a_traceback_shows_the_authors_lines_alone(worker: Bench) -> None:
    code = "def inner():\n  raise ValueError('no')\n"
    code += "try:\n  inner()\nexcept ValueError as e:\n  json.loads('{')"
    found = await run(worker, code)
    assert found.error is not None
    assert found.error.exception_type == "JSONDecodeError"
    assert found.error.details is not None
    text = found.error.details["traceback"]
    assert "line 2, in inner\n    raise ValueError('no')" in text
    assert "line 6, in <module>\n    json.loads('{')" in text
    assert "noetl_worker" not in text
    assert "json/decoder" not in text


async def test_private_files_of_a_call_are_gone_at_the_next(worker: Bench) -> None:
    code = "os.chdir(os.environ['HOME'])\nseen = os.listdir()\nopen('f', 'w').write('x')\n"
    code += "os.makedirs('d/e')\nos.chdir('d')\nreturn seen"
    for _ in range(2):
        assert (await run(worker, code)).data == []


async def test_files_of_the_execution_stay_for_its_next_call(worker: Bench) -> None:
    code = "seen = sorted(os.listdir())\nos.makedirs('d/e', exist_ok=True)\n"
    code += "open('d/f', 'w').write('x')\nos.chdir('d')\nreturn seen"
    assert (await run(worker, code)).data == []
    assert (await run(worker, code)).data == ["d"]
    assert (await run(worker, "return os.listdir('d')")).data == ["f"]
    assert (await run(worker, code, tenant="other")).data == []


async def test_a_call_that_leaves_something_running_ends_with_its_process(worker: Bench) -> None:
    thread = (
        "import threading\nthreading.Thread(target=time.sleep, args=(300,), daemon=True).start()"
    )
    nap, own = make_nap(), "os.environ['HOME']"
    child = f"import subprocess\np = subprocess.Popen(['/bin/sleep', '{nap}'])\n"
    child += f"return [p.poll(), {own}]"
    first = (await run(worker, f"{thread}\nreturn {own}")).data
    state, second = (await run(worker, child)).data
    third = (await run(worker, f"return {own}")).data
    assert state is None
    assert len({first, second, third}) == 3

    async def is_gone() -> bool:
        return count_running(nap) == 0

    await eventually(is_gone)


async def test_a_timeout_ends_the_children_of_the_code_too(worker: Bench) -> None:
    nap = make_nap()
    code = f"import subprocess\nsubprocess.Popen(['/bin/sleep', '{nap}'])\nwhile True: pass"
    call = asyncio.ensure_future(run(worker, code, timeout_s=3))

    async def has_begun() -> bool:
        return count_running(nap) == 1

    await eventually(has_begun)
    found = await call
    assert found.error is not None
    assert found.error.kind == "timeout"

    async def is_gone() -> bool:
        return count_running(nap) == 0

    await eventually(is_gone)


@pytest.mark.parametrize(
    "code",
    [
        "return open('/proc/1/environ').read()",
        "return open('/proc/WORKER/environ').read()",
        "return os.readlink('/proc/WORKER/fd/0')",
        "return open('/proc/WORKER/mem', 'rb').read(1)",
        "os.kill(WORKER, 9)",
        "os.kill(os.getppid(), 15)",
    ],
)
async def test_the_worker_is_out_of_reach(worker: Bench, code: str) -> None:
    found = await run(worker, code.replace("WORKER", str(os.getpid())))
    assert found.error is not None, found.data
    # In a space of processes of its own the code does not even find the worker.
    assert found.error.exception_type in {
        *("PermissionError", "ProcessLookupError", "FileNotFoundError")
    }


async def test_the_files_of_other_tenants_are_out_of_sight(worker: Bench) -> None:
    keep = "open('secret', 'w').write('x')\nreturn os.path.dirname(os.path.dirname(os.getcwd()))"
    own = "os.path.basename(os.path.dirname(os.getcwd()))"
    parent = (await run(worker, keep, tenant="acme")).data
    seen = await run(worker, f"return os.listdir({parent!r}) == [{own}]")
    other = await run(worker, f"return [os.listdir({parent!r}), {own}]", tenant="other")
    assert seen.data is True
    assert other.data[0] == [other.data[1]]


async def test_the_network_is_granted_by_the_operator_and_asked_for_by_the_task(
    worker: Bench,
) -> None:
    code = (
        "r, w = await asyncio.open_connection('127.0.0.1', port)\nreturn (await r.read()).decode()"
    )

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        closed = await run(worker, code, port=port)
        assert closed.error is not None
        assert "spec.network: true" in closed.error.message
        refused = await run(worker, code, port=port, fields={"network": True})
        assert refused.error is not None
        assert "NOETL_WORKER_PYTHON_NETWORK_BY_TASK=true" in refused.error.message
        async with bench(python_network=True) as other:
            assert (await run(other, code, port=port)).data == "hello"
            shut = await run(other, code, port=port, fields={"network": False})
            assert shut.error is not None
        async with bench(python_network_by_task=True) as other:
            assert (await run(other, code, port=port)).error is not None
            assert (await run(other, code, port=port, fields={"network": True})).data == "hello"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "D = __import__('decimal').Decimal\nreturn [D('1.5'), D('0.10000000000000000001')]",
            [1.5, "0.10000000000000000001"],
        ),
        (
            "return [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.time(3)]",
            ["2026-01-02T00:00:00+00:00", "03:00:00"],
        ),
        (
            "return {'a': {1}, 'b': (float('inf'), b'x'), 3: uuid.UUID(int=1)}",
            {"a": [1], "b": ["Infinity", "eA=="], "3": "00000000-0000-0000-0000-000000000001"},
        ),
        (
            "import pyarrow\nd = [datetime.date(2026, 1, 2), None]\nreturn pyarrow.table({'d': d})",
            {
                "columns": ["d"],
                "row_count": 2,
                "rows": [{"d": "2026-01-02"}, {"d": None}],
                "types": ["date32[day]"],
            },
        ),
        (
            """
class Frame:
    columns = ['a']
    def to_dict(self, orient):
        return [{'a': float('nan')}] if orient == 'records' else None
return Frame()
""",
            {"columns": ["a"], "rows": [{"a": None}], "row_count": 1},
        ),
        (
            "return {'columns': ['a', 'b'], 'rows': [[1, 2]]}",
            {"columns": ["a", "b"], "rows": [[1, 2]]},
        ),
    ],
)
async def test_results_become_json_values(worker: Bench, code: str, expected: Any) -> None:
    found = await run(worker, code)
    assert found.error is None, found.error
    assert found.data == expected


async def test_a_result_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with bench() as worker:
        found = await run(worker, "return 'x' * (65 * 1024 * 1024)")
    assert found.error is not None
    assert found.error.kind == "payload_too_large"


async def test_a_file_has_a_limit_and_so_have_open_files(worker: Bench) -> None:
    large = await run(worker, "f = open('f', 'wb')\nf.truncate(2 * 1024**3)")
    assert large.error is not None
    assert large.error.exception_type == "OSError"
    many = await run(worker, "fs = [open('/dev/null') for _ in range(300)]")
    assert many.error is not None
    assert "Too many open files" in many.error.message


async def test_modules_of_the_deployment_are_found_where_the_task_says(tmp_path: Path) -> None:
    site = tmp_path / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    site.mkdir(parents=True)
    (site / "in_venv.py").write_text("v = 1")
    (tmp_path / "on_path.py").write_text("v = 2")
    deps = {"sys_path": [str(tmp_path)], "venv_path": str(tmp_path)}
    code = "import in_venv, on_path\nreturn in_venv.v + on_path.v"
    async with bench(task_folders=(str(tmp_path),)) as worker:
        assert (await run(worker, code, fields={"deps": deps})).data == 3
        later = await run(worker, "import on_path")
    assert later.error is not None
    assert later.error.exception_type == "ModuleNotFoundError"


async def test_modules_are_not_looked_for_where_a_task_may_not_read(
    worker: Bench, tmp_path: Path
) -> None:
    found = await run(worker, "return 1", fields={"deps": {"sys_path": [str(tmp_path)]}})
    assert found.error is not None
    assert found.error.kind == "config"
    assert "NOETL_WORKER_TASK_FOLDERS" in found.error.message


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"deps": {"packages": ["requests"]}}, "config"),
        ({"requirements": ["requests==2.32.3"]}, "config"),
        ({"network": True}, "config"),
        ({"deps": {"sys_path": ["/usr/no/such/place"]}}, "missing_dependency"),
        ({"deps": {"venv_path": "/usr/no/such/place"}}, "missing_dependency"),
        ({"deps": ["requests"]}, "validation"),
        ({"libs": "json"}, "validation"),
        ({"libs": {"a": {"from": "json"}}}, "validation"),
        ({"libs": {"a": "no_such_module"}}, "missing_dependency"),
        ({"libs": {"a": {"from": "json", "import": "nothing"}}}, "missing_dependency"),
        ({"libs": ["no-such-distribution"]}, "missing_dependency"),
        ({"code_b64": "!!"}, "validation"),
        ({"script": {"uri": "x.py"}}, "config"),
    ],
)
async def test_what_a_worker_cannot_give_is_named(
    worker: Bench, fields: dict[str, Any], kind: str
) -> None:
    found = await run(worker, "return 1", fields=fields)
    assert found.error is not None
    assert found.error.kind == kind


async def test_a_distribution_is_known_by_its_own_name(worker: Bench) -> None:
    fields = {"libs": ["PyYAML", "msgspec", "json"]}
    assert (await run(worker, "return 1", fields=fields)).data == 1


BIG = "open(os.environ['TMPDIR'] + '/big', 'wb').write(b'x' * 1_000_000)\n"
SLEEPER = "import threading\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "os._exit(1)",
        "os.makedirs('d/e'); [os.chmod(one, 0) for one in ('d/e', 'd', '.')]\nos._exit(1)",
        "os.kill(os.getpid(), 9)",
        SLEEPER + "return 1",
    ],
    ids=["timeout", "exit", "closed", "killed", "spent"],
)
async def test_the_home_of_a_process_that_was_ended_goes_with_it(worker: Bench, code: str) -> None:
    await run(worker, BIG + code, timeout_s=2)

    async def is_gone() -> bool:
        return not list(worker.tools.python._directory.iterdir())

    await eventually(is_gone)


async def test_a_process_that_cannot_be_started_leaves_no_home(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError, match="nowhere"):
        await run(worker, "return 1")
    monkeypatch.undo()

    async def is_gone() -> bool:
        return not list(worker.tools.python._directory.iterdir())

    await eventually(is_gone)
    assert (await run(worker, "return 1")).data == 1


@pytest.mark.parametrize(
    "leave",
    [
        "os.makedirs('d/e'); os.chmod('d/e', 0); os.chmod('d', 0)",
        "[(os.mkdir('d'), os.chdir('d')) for _ in range(1100)]",
        "os.chmod('.', 0)",
    ],
    ids=["closed", "deep", "home"],
)
async def test_files_of_any_kind_are_gone_at_the_next_call(worker: Bench, leave: str) -> None:
    home = "os.chdir(os.environ['HOME'])\n"

    async def is_the_same_home_empty() -> bool:
        first = await run(worker, f"{home}{leave}\nreturn os.environ['HOME']")
        second = await run(worker, f"{home}return [os.environ['HOME'], os.listdir()]")
        there, entries = second.data
        assert entries == []
        # On a busy machine a process whose output is late is replaced, and its home with it.
        return bool(there == first.data)

    await eventually(is_the_same_home_empty)
