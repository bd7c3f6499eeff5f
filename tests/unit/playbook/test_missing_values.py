"""What is not there fails every test and comparison, unless the playbook says that it may be so."""

from typing import Any

import pytest

from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.scope import ScopeParts, TemplateScope
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.result_view import ResultView

FETCH = ResultView({"has_bad_rows": True, "nested": {"n": 1}, "none": None})
NAMES: dict[str, Any] = {"fetch": FETCH, "rows": [{"x": 1}, {"y": 2}], "n": 3}
STRICT = TemplateScope({}, ScopeParts(workload=NAMES))
LENIENT = TemplateScope({}, ScopeParts(workload=NAMES, is_lenient=True))

MISSING = (
    "fetchd",
    "fetchd.has_bad_rows",
    "fetch.has_bad_row",
    "fetch.nested.m",
    "fetch.none.x",
    "fetch['has_bad_row']",
    "fetch['has_bad_' ~ 'row']",
    "rows[7]",
    "rows[0].y",
    "(rows | first).y",
)
# Each position with what it gives where missing values are false.
POSITIONS: dict[str, Any] = {
    "{{ not @ }}": True,
    "{{ @ and true }}": None,
    "{{ true and @ }}": None,
    "{{ @ or 5 }}": 5,
    "{{ false or (@ or 5) }}": 5,
    "{{ 1 if @ else 2 }}": 2,
    "{{ 1 if not @ else 2 }}": 1,
    "{{ @ == 'x' }}": False,
    "{{ 'x' == @ }}": False,
    "{{ @ != 'x' }}": True,
    "{{ 'x' != @ }}": True,
    "{{ @ in ['x'] }}": False,
    "{{ @ not in ['x'] }}": True,
    "{{ @ is none }}": False,
    "{{ @ is not none }}": True,
    "{{ @ is string }}": False,
    "{{ @ is eq 1 }}": False,
    "{{ @ is sameas true }}": False,
    "{{ [1, 2] | map('float') | select('eq', @) | list }}": [],
    "{% if @ %}a{% else %}b{% endif %}": "b",
    "{% if n == 4 %}{% elif @ %}a{% else %}b{% endif %}": "b",
    "{% if @ == 1 %}a{% else %}b{% endif %}": "b",
    "{% set m = @ %}{% if m %}a{% else %}b{% endif %}": "b",
    "{% for i in [1] if @ %}a{% else %}b{% endfor %}": "b",
    "{% for i in [1] %}{{ 'a' if @ else 'b' }}{% endfor %}": "b",
}
ALLOWED: dict[str, Any] = {
    "{{ @ is defined }}": False,
    "{{ @ is not defined }}": True,
    "{{ @ is undefined }}": True,
    "{{ @ is defined and @ }}": False,
    "{{ @ is undefined or @ }}": True,
    "{{ true or @ }}": True,
    "{{ false and @ }}": False,
    "{{ 1 if true else @ }}": 1,
    "{{ @ | default(false) }}": False,
    "{{ @ | default('') == 'x' }}": False,
    "{{ @ | d('a') != 'x' }}": True,
    "{{ @ | default([], true) | length }}": 0,
    "{% if @ is defined and @ %}a{% else %}b{% endif %}": "b",
    "{% if @ | default(false) %}a{% else %}b{% endif %}": "b",
}


def at(position: str, missing: str) -> str:
    return position.replace("@", missing)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("position", POSITIONS)
def test_testing_what_is_not_there_fails(position: str, missing: str) -> None:
    source = at(position, missing)
    with pytest.raises(TemplateError, match=r"is not there|is undefined"):
        compile_value(source).render(STRICT)
    with pytest.raises(TemplateError):
        compile_condition(source).is_true(STRICT)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize(("position", "expected"), POSITIONS.items())
def test_a_lenient_playbook_keeps_missing_values_false(
    position: str, expected: Any, missing: str
) -> None:
    source = at(position, missing)
    if expected is None:
        assert compile_condition(source).is_true(LENIENT) is False
        return
    assert compile_value(source).render(LENIENT) == expected


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize(("position", "expected"), ALLOWED.items())
@pytest.mark.parametrize("scope", [STRICT, LENIENT], ids=["strict", "lenient"])
def test_what_asks_whether_it_is_there_is_always_allowed(
    scope: TemplateScope, position: str, expected: Any, missing: str
) -> None:
    assert compile_value(at(position, missing)).render(scope) == expected


def test_get_asks_for_what_may_be_absent() -> None:
    condition = compile_condition("{{ fetch.get('has_bad_row') }}")
    assert not condition.is_true(STRICT)
    assert compile_condition("{{ fetch.nested.get('m', 1) == 1 }}").is_true(STRICT)


@pytest.mark.parametrize("missing", MISSING)
def test_a_condition_that_is_missing_as_a_whole_fails_or_is_told(missing: str) -> None:
    condition = compile_condition("{{ " + missing + " }}")
    with pytest.raises(TemplateError):
        condition.evaluate_condition(STRICT)
    holds, path = condition.evaluate_condition(LENIENT)
    assert not holds
    assert path


@pytest.mark.parametrize(
    "source", ["{{ fetch.has_bad_row }}", "{% if fetch.has_bad_row %}true{% endif %}"]
)
def test_the_error_names_the_path_and_the_nearest_name(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_condition(source).is_true(STRICT)
    said = str(caught.value)
    assert said.startswith("'fetch.has_bad_row' is not there (did you mean 'has_bad_rows'? ")
    assert " has has_bad_rows, nested, none) in {" in said
    assert "write 'is defined', 'default(...)' or '.get(...)'" in str(caught.value)


def test_the_error_names_the_fields_that_exist() -> None:
    scope = TemplateScope({}, ScopeParts(workload={"fetch": {"items": [1], "status": 200}}))
    with pytest.raises(TemplateError) as caught:
        compile_value("{{ fetch.itmes | length }}").render(scope)
    assert str(caught.value).endswith("(did you mean 'fetch.items'? 'fetch' has items, status)")


def test_the_fields_that_an_error_names_are_few_and_no_data() -> None:
    row = {"a-secret/key==": 1, "mail@example.org": 2, **{f"field_{n}": n for n in range(20)}}
    with pytest.raises(TemplateError) as caught:
        compile_value("{{ row.other }}").render(
            TemplateScope({}, ScopeParts(workload={"row": row}))
        )
    said = str(caught.value)
    assert "'row' has field_0, " in said
    assert "field_11 and 8 more" in said
    assert "secret" not in said
    assert "example" not in said


@pytest.mark.parametrize(
    ("source", "is_strict_error"),
    [
        ("{{ rows | selectattr('x') | list }}", True),
        ("{{ rows | rejectattr('x') | list }}", True),
        ("{{ rows | selectattr('x', 'equalto', 1) | list }}", True),
        ("{{ rows | selectattr('x', 'defined') | list }}", False),
        ("{{ rows | map(attribute='x', default=0) | select | list }}", False),
        ("{{ (rows | selectattr('z', 'defined') | first) or 1 }}", True),
    ],
)
def test_filters_test_fields_by_the_same_rule(source: str, *, is_strict_error: bool) -> None:
    compile_value(source).render(LENIENT)
    if is_strict_error:
        with pytest.raises(TemplateError):
            compile_value(source).render(STRICT)
    else:
        assert compile_value(source).render(STRICT)


SUCCESS = OutputView(ResultView({"more": True}), kind="python")
FAILURE = OutputView(
    ResultView(None), kind="http", error={"kind": "connection", "message": "refused"}
)
FAILED_QUERY = OutputView(
    ResultView(None),
    kind="postgres",
    error={"kind": "constraint", "message": "m", "pg_code": "23505", "details": {"table": "t"}},
)


@pytest.mark.parametrize(
    ("source", "of_success", "of_failure"),
    [
        ("{{ output.error }}", False, True),
        ("{{ error }}", False, True),
        ("{{ error.kind == 'connection' }}", False, True),
        ("{{ output.error.kind == 'connection' }}", False, True),
        ("{{ output.error.status == 404 }}", False, False),
        ("{{ output.error.details.constraint == 'c' }}", False, False),
        ("{{ output.http.status == 404 }}", False, False),
        ("{{ output.pg.code == '23505' }}", False, False),
        ("{{ output.status == 'ok' and output.more }}", True, False),
        ("{{ output.data.more }}", True, False),
        ("{{ response.more }}", True, False),
        ("{{ output.data.state != 'ready' and output.status == 'error' }}", None, True),
        ("{{ output._ref }}", False, False),
        ("{{ output.data._ref }}", False, False),
        ("{{ output.meta.attempt == 2 }}", False, False),
        ("{% set e = output.error %}{% if e %}true{% endif %}", False, True),
        ("{% if output.error.pg_code == '23505' %}true{% endif %}", False, False),
    ],
)
def test_the_languages_own_fields_are_absent_where_they_do_not_apply(
    source: str, *, of_success: bool | None, of_failure: bool
) -> None:
    condition = compile_condition(source)
    if of_success is None:
        with pytest.raises(TemplateError):
            condition.is_true(TemplateScope({"output": SUCCESS}, ScopeParts()))
    else:
        assert condition.is_true(TemplateScope({"output": SUCCESS}, ScopeParts())) is of_success
    assert condition.is_true(TemplateScope({"output": FAILURE}, ScopeParts())) is of_failure


def test_a_field_of_an_error_that_does_not_apply_is_absent() -> None:
    names = TemplateScope({"output": FAILED_QUERY}, ScopeParts())
    assert compile_condition("{{ output.pg.constraint == 'c' }}").is_true(names) is False
    assert compile_condition("{{ output.error.details.table == 't' }}").is_true(names)
    assert compile_condition("{{ output.error.exception_type != 'x' }}").is_true(names)


@pytest.mark.parametrize(
    "source",
    [
        "{{ output.errr }}",
        "{{ output.error.knid == 'connection' }}",
        "{{ error.knid == 'connection' }}",
        "{{ output.pg.cod == '1' }}",
        "{{ output.meta.atempt == 2 }}",
        "{{ output.data.mor }}",
        "{{ outptu.error }}",
    ],
)
def test_a_mistyped_field_of_the_languages_own_is_a_mistake(source: str) -> None:
    with pytest.raises(TemplateError, match="is not there"):
        compile_condition(source).is_true(TemplateScope({"output": SUCCESS}, ScopeParts()))


def test_a_mistyped_field_of_an_error_is_a_mistake_where_there_is_one() -> None:
    with pytest.raises(TemplateError, match=r"did you mean 'kind'\?"):
        compile_condition("{{ output.error.knid }}").is_true(
            TemplateScope({"output": FAILURE}, ScopeParts())
        )


@pytest.mark.parametrize("name", ["output", "event", "_prev", "result", "response", "error"])
def test_a_name_of_the_language_without_a_value_here_is_absent(name: str) -> None:
    assert not compile_condition("{{ " + name + " }}").is_true(TemplateScope({}, ScopeParts()))
    text = "{% if " + name + " %}true{% endif %}"
    assert not compile_condition(text).is_true(TemplateScope({}, ScopeParts()))


def test_what_is_absent_is_still_no_value() -> None:
    with pytest.raises(TemplateError, match=r"'output\.error' is undefined"):
        compile_value("{{ output.error }}").render(TemplateScope({"output": SUCCESS}, ScopeParts()))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{{ f.results[0].sq + 1 }}", "did you mean 'f.results[0].body.sq'?"),
        ("{{ f.results[0].sq > 1 }}", "did you mean 'f.results[0].body.sq'?"),
        # Two places: which of them was meant cannot be told.
        ("{{ f.results[0].n + 1 }}", "is undefined in {{ f.results[0].n + 1 }}"),
        ("{{ entry.id + 1 }}", "add '.orders' to what the loop is in"),
        ("{{ other.id + 1 }}", "the entry 'total' of a mapping: it has 'key' and 'value'"),
    ],
)
def test_what_lies_deeper_and_what_an_entry_is_are_told(source: str, told: str) -> None:
    names = {
        "f": {"results": [{"body": {"sq": 4, "n": 1}, "headers": {"n": "1"}}]},
        "entry": {"key": "orders", "value": [1]},
        "other": {"key": "total", "value": 3},
    }
    with pytest.raises(TemplateError) as caught:
        compile_value(source).evaluate(TemplateScope(names, ScopeParts()))
    assert told in str(caught.value)
