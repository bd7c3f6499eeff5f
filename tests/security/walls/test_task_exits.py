"""Code that ends itself is told so: it is the author's error, with its exit code and line."""

import pytest
from tests.support.calls import call_of
from tests.support.working import Bench


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit()", 0),
        ("sys.exit('no rows')", 1),
        ("raise SystemExit(4)", 4),
        ("exit = sys.exit\n  exit(5)", 5),
        ("os._exit(6)", 6),
    ],
)
async def test_an_exit_is_told_with_code_and_line(worker: Bench, end: str, code: int) -> None:
    source = f"def stop():\n  {end}\nstop()"
    found = await worker.tools.run(call_of("python", {"code": source}))
    error = found.error
    assert error is not None
    assert (error.kind, error.exception_type) == ("transform", "SystemExit")
    assert f"exit code {code}" in error.message
    assert error.details is not None
    assert error.details["line"] == 1 + end.count("\n") + 1
    assert error.details["line_text"] == end.splitlines()[-1].strip()


async def test_what_the_code_said_at_its_end_is_told(worker: Bench) -> None:
    found = await worker.tools.run(call_of("python", {"code": "sys.exit('no rows')"}))
    assert found.error is not None
    assert "no rows" in found.error.message


async def test_an_exit_from_below_python_is_told_with_its_code(worker: Bench) -> None:
    code = "import ctypes\nctypes.CDLL(None)._exit(7)"
    found = await worker.tools.run(call_of("python", {"code": code}))
    assert found.error is not None
    assert found.error.kind == "transform"
    assert "ended with code 7" in found.error.message


async def test_children_of_the_code_end_as_ever(worker: Bench) -> None:
    code = "if os.fork() == 0:\n  os._exit(5)\nreturn os.waitstatus_to_exitcode(os.wait()[1])"
    assert (await worker.tools.run(call_of("python", {"code": code}))).data == 5
