"""What tracebacks call the code of a task."""

from typing import Any

import pytest
from tests.support.calls import call_of

from noetl_worker.sandbox import user_call
from noetl_worker.sandbox.user_call import CallRequest, run_user_call
from noetl_worker.tools.scripts.script_loader import name_source

INLINE = {"type": "inline", "code": "x"}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"code": "x"}, "<code of step s>"),
        ({"script": {"source": INLINE}}, "<code of step s>"),
        ({"script": {"uri": "scripts/load.py", "source": INLINE}}, "scripts/load.py"),
        ({"script": {"uri": "file:///srv/load.py"}}, "load.py"),
        ({"script": {"uri": "/usr/lib/python3/load.py"}}, "load.py"),
        ({"script": {"uri": "https://code.test/a/load.py?token=secret"}}, "load.py"),
        ({"script": {"uri": "s3://bucket/"}}, "<script>"),
    ],
)
def test_code_is_called_by_its_file_or_its_step(fields: dict[str, Any], name: str) -> None:
    assert name_source(call_of("python", fields)) == name


@pytest.mark.parametrize(
    "code", ["rows = {}\nresult = rows['id']", "rows = {}\nreturn rows['id']", "x = 1\nx ="]
)
def test_a_traceback_names_the_file_of_a_script(code: str) -> None:
    ask = CallRequest(code=code, inputs={}, execution_id="1", cpu_s=1, file="scripts/load.py")
    with pytest.raises((KeyError, SyntaxError)) as found:
        run_user_call(ask, lambda _: None)
    answer = user_call.describe_exception(
        found.value, source=code, has_network=False, file=ask.file
    )
    assert 'File "scripts/load.py", line 2' in answer.traceback
    assert answer.line == 2
