"""The python tool: three contracts, its limits, and what user code cannot reach."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.working import EXECUTION, ORGANIZATION, Bench, bench

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.domain.sites import Site
from noetl_worker.tools.call import Call, Outcome, Timeout


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
    site = Site(
        execution_id=EXECUTION,
        tenant_id=TenantId(tenant),
        organization_id=organization,
        step="s",
        unit="step",
    )
    return await worker.tools.run(
        Call(
            site=site,
            task="t",
            kind="python",
            attempt=1,
            visit=1,
            fields={"code": code, **(fields or {})},
            input=given,
            auth=None,
            timeout=Timeout(total=timeout_s),
            iterator={"who": "ann"},
            named=named or {},
        )
    )


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
        expected = [[[1, 2]], "2026-01-02", None, "eA=="]
    assert (data if data is not None else found.data) == expected


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
    assert "ended with code 3" in found.error.message
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
    code = "time.sleep(0.2)\nreturn os.getpid()"
    found = await asyncio.gather(*(run(worker, code) for _ in range(4)))
    assert len({one.data for one in found}) == 2
    assert os.getpid() not in {one.data for one in found}


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
