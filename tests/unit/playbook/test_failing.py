"""Conditions that only a failure can fulfil are false, and cannot fail, where nothing failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl_playbook.templates.expressions import TemplateError, compile_condition
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.result_view import ResultView

WELL = {"output": OutputView(ResultView({"error": {"kind": "parse"}, "n": 0}), kind="http")}


@pytest.mark.parametrize(
    "condition",
    [
        "output.error",
        "output.error.retryable",
        "{{ output.error.kind == 'rate_limit' }}",
        "{{ output.error.kind in ['timeout', 'connection'] }}",
        "{{ output.error.retryable or output.error.kind == 'parse' }}",
        "{{ output['error'].retryable and 1 / 0 }}",
    ],
)
def test_what_only_errors_can_fulfil_is_known(condition: str) -> None:
    compiled = compile_condition(condition)
    assert compiled.needs_error
    assert not compiled.is_true(WELL)


@pytest.mark.parametrize(
    "condition",
    [
        True,
        "output.status == 'error'",
        "not output.error",
        "output.error.kind != 'parse'",
        "output.error.kind not in ['parse']",
        "output.error == none",
        "output.error is defined",
        "output.error.kind == output.n",
        "output.error.kind | default('x') == 'x'",
        "output.error.kind.upper() == 'X'",
        "1 / 0 and output.error",
        "output.n == 1 or output.error",
        "output.error.retryable if true else false",
        "error.kind == 'parse'",
        "iter.output.error",
        "{{ output.error }} ",
        "x {{ output.error }}",
    ],
)
def test_what_says_anything_else_is_asked(condition: str | bool) -> None:  # noqa: FBT001 - a condition may be one
    known = {"output.error == none", "{{ output.error }} "}
    assert compile_condition(condition).needs_error is (condition in known)


_LEAVES = st.sampled_from(
    [
        *("output.error", "output.error.kind", "output.error.details.a[0]", "output.n", "gone"),
        *("'parse'", "1", "none", "[1, 'parse']", "1 / 0", "output.error.kind | upper"),
    ]
)
_OPERATORS = st.sampled_from(["and", "or", "==", "!=", "in", "not in", "<"])
_CONDITIONS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, _OPERATORS, inner),
        st.builds("(not {})".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
    ),
    max_leaves=6,
)


@given(_CONDITIONS)
def test_nothing_that_is_passed_over_could_have_held(text: str) -> None:
    try:
        compiled = compile_condition(text)
    except TemplateError:
        return
    if compiled.needs_error:
        assert compiled.is_true(WELL) is False
