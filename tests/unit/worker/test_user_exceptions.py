"""An exception of user code as an error: its class, its message, the line, the traceback."""

import pytest

from noetl_contracts import codec
from noetl_contracts.errors import summarize_error
from noetl_worker.domain.failures import classify_exception
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.sandbox.source import FILE, compile_source, read_user_traceback
from noetl_worker.tools.python import errors as python_errors

CODE = """\
rows = {}


def pick(name):
    return rows[name]


try:
    pick("first")
except KeyError as problem:
    raise ValueError("no row") from problem
"""


def raised_by(code: str) -> BaseException:
    try:
        exec(compile_source(code, ()).code, {})  # noqa: S102 - it stands for a task's code
    except BaseException as problem:  # noqa: BLE001 - whatever it raises is looked at
        return problem
    raise AssertionError("the code raised nothing")


def test_an_exception_is_told_with_class_message_and_line() -> None:
    code = 'rows = {}\nvalue = rows["missing"]\n'
    found = read_user_traceback(raised_by(code), source=code, file=FILE)
    assert (found.line, found.line_text) == (2, 'value = rows["missing"]')
    error = classify_exception(
        "KeyError",
        ["KeyError", "LookupError"],
        found.message,
        traceback=found.traceback,
        line=found.line,
        line_text=found.line_text,
    )
    # Rules look into the message: it stays what the exception says.
    assert error.message == "'missing'"
    summary = summarize_error(codec.to_builtins(error))
    assert summary == "KeyError: 'missing' (line 2: value = rows[\"missing\"])"
    assert error.details is not None
    assert error.details["line"] == 2
    assert error.details["traceback"].splitlines()[0] == "Traceback (most recent call last):"


def test_a_traceback_has_the_lines_of_the_code_alone_and_those_of_its_causes() -> None:
    found = read_user_traceback(raised_by(CODE), source=CODE, file=FILE)
    places = [line for line in found.traceback.splitlines() if line.startswith("  File ")]
    assert places
    assert all(FILE in place for place in places)
    assert "return rows[name]" in found.traceback
    assert (found.line, found.line_text) == (11, 'raise ValueError("no row") from problem')


def test_the_line_is_the_last_one_of_the_code_when_a_library_raises() -> None:
    code = "import json\n\njson.loads('{')\n"
    found = read_user_traceback(raised_by(code), source=code, file=FILE)
    assert (found.line, found.line_text) == (3, "json.loads('{')")


def test_a_syntax_error_names_its_line() -> None:
    code = "a = 1\nb = = 2\n"
    with pytest.raises(SyntaxError) as caught:
        compile_source(code, ())
    found = read_user_traceback(caught.value, source=code, file=FILE)
    assert (found.line, found.line_text, found.message) == (2, "b = = 2", "invalid syntax")


def test_an_exception_without_a_line_of_the_code_is_told_by_class_and_message() -> None:
    error = classify_exception("ValueError", ["ValueError"], "no")
    assert (error.message, error.details) == ("no", None)
    assert summarize_error(codec.to_builtins(error)) == "ValueError: no"
    ended = classify_exception("SystemExit", ["SystemExit"], "")
    assert summarize_error(codec.to_builtins(ended)) == "SystemExit"


def test_a_long_message_is_cut_with_a_sign_and_keeps_its_line() -> None:
    error = classify_exception("ValueError", [], "x" * 10_000, line=3, line_text="y" * 1_000)
    assert error.message.endswith("…")
    summary = summarize_error(codec.to_builtins(error))
    assert "(line 3: yyy" in summary
    assert len(summary) < 3_000


def test_secrets_are_masked_before_texts_are_cut() -> None:
    mask = SecretMask()
    mask.learn_secrets({"token": "canary-canary-canary"})
    # The limit of the message would cut this secret in two.
    message = "x" * 2_040 + "canary-canary-canary"
    answer = python_errors.CallAnswer(
        exception="ValueError",
        message=message,
        line=1,
        line_text="call('canary-canary-canary')",
        traceback="canary-canary-canary" + "y" * 4_090,
    )
    error = python_errors.build_answer_error(answer, mask, memory_bytes=1)
    assert error is not None
    assert "canary" not in error.message + str(error.details)
    assert "call('***')" in summarize_error(codec.to_builtins(error))


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (
            python_errors.CallAnswer(exception="OSError", lacks_network=True),
            "spec.network: true",
        ),
        (
            python_errors.CallAnswer(exception="ModuleNotFoundError", absent_module="pandas.io"),
            "requirements: [pandas]",
        ),
        (
            python_errors.CallAnswer(exception="MemoryError", bases=["MemoryError"]),
            "NOETL_WORKER_PYTHON_MEMORY_BYTES",
        ),
        (python_errors.CallAnswer(missing="pandas"), "requirements: [pandas]"),
        (python_errors.CallAnswer(result_bytes=9), "artifact task"),
    ],
)
def test_an_error_names_what_would_have_prevented_it(
    answer: python_errors.CallAnswer, hint: str
) -> None:
    error = python_errors.build_answer_error(answer, SecretMask(), memory_bytes=2**30)
    assert error is not None
    assert hint in error.message


@pytest.mark.parametrize(
    ("code", "hint"),
    [(-24, "'timeout'"), (-9, "memory"), (-11, "NOETL_WORKER_PYTHON_MEMORY_BYTES"), (3, "code 3")],
)
def test_the_end_of_a_process_is_explained(code: int, hint: str) -> None:
    error = python_errors.build_ended_error(code, timeout_s=5, memory_bytes=2**30)
    assert error.exception_type == "ProcessEnded"
    assert hint in error.message
