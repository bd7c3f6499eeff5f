"""The template engine, by the tables of the language."""

from datetime import UTC, datetime
from typing import Any

import pytest

from noetl_playbook.templates import expressions
from noetl_playbook.templates.expressions import TemplateError, compile_condition, compile_value
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, TimeSource

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CLOCK = TimeSource(now=lambda: NOW, new_uuid=lambda: "0-0-0-0-7")
WORKLOAD = {
    "a": {"b": 1, "items": "the key", "_ref": "r"},
    "rows": [{"x": 1, "y": "5"}, {"x": 2, "y": "6"}],
    "name": "O'Hara",
    "flag": True,
    "nothing": None,
    "n": 7,
    "ratio": 0.5,
    "day": datetime(2026, 1, 2, tzinfo=UTC),
    "word": "grüß",
    "mixed": {"b": [1, None, True], "a": "é"},
}
SCOPE = TemplateScope({"iter": {"page": 3}, **CLOCK.build_names()}, ScopeParts(workload=WORKLOAD))


def rendered(source: Any, *, flavour: Any = "text") -> Any:
    return compile_value(source, flavour=flavour).render(SCOPE)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ rows }}", WORKLOAD["rows"]),
        ("  {{ a.b }}\n", 1),
        ("{{ flag }}", True),
        ("{{ nothing }}", None),
        ("{{ ratio }}", 0.5),
        ("{{ '42' }}", "42"),
        ("{{ a.b }}{{ n }}", "17"),
        (" {{ n }} {{ flag }}", " 7 true"),
        ("{{ nothing }}!", "null!"),
        ("x={{ mixed }}", 'x={"b":[1,null,true],"a":"é"}'),
        ("{{ day }}.", "2026-01-02T00:00:00+00:00."),
        ("{{ day }}", "2026-01-02T00:00:00+00:00"),
        ("plain", "plain"),
        (5, 5),
        ("keep\n", "keep\n"),
        ("{{ n }}\n!\n", "7\n!\n"),
        ("${#a} {{ n }} {# not a comment #}", "${#a} 7 {# not a comment #}"),
        ("{{`{{ raw }}`}}", "{{ raw }}"),
        ("a {{`{{ raw }}`}}", "a {{ raw }}"),
        ("{% raw %}{{ a }}{% endraw %}", "{{ a }}"),
        ("{{ flag | string | lower }}", "true"),
        ("{{ flag ~ '' }}", "True"),
        ("{% for r in rows %}{{ r.x }}{% if not loop.last %},{% endif %}{% endfor %}", "1,2"),
        ("{% set k = n + 1 %}{{ k }}", "8"),
        ({"q": ["{{ n }}", {"r": "{{ a }}"}]}, {"q": [7, {"r": WORKLOAD["a"]}]}),
        ("{{ '{{ n }}' }}", "{{ n }}"),
        ("{{ 1 < n < 9 }}", True),
        ("{{ rows[0:1] }}", [{"x": 1, "y": "5"}]),
    ],
)
def test_a_template_yields_its_native_value_or_its_text_form(source: Any, expected: Any) -> None:
    found = rendered(source)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = {{ flag }}; y = {{ nothing }}", "x = True; y = None"),
        ("x = {{ mixed }}", "x = {'b': [1, None, True], 'a': 'é'}"),
        ("x = '{{ word }}' + {{ n }}", "x = 'grüß' + 7"),
    ],
)
def test_code_receives_python_literals(source: str, expected: str) -> None:
    assert rendered(source, flavour="python") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ gone is defined }}", False),
        ("{{ gone.a.b is undefined }}", True),
        ("{{ gone | default(4) }}", 4),
        ("{{ nothing.x | d('z') }}", "z"),
        ("{{ '' | default('z', true) }}", "z"),
        ("{{ nothing | default(4) }}", None),
        ("{{ nothing | int }} {{ '' | float }}", "0 0.0"),
    ],
)
def test_presence_tests_of_undefined_are_normal(source: str, expected: Any) -> None:
    assert rendered(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ gone }}",
        "a {{ gone }}",
        "{{ gone | upper }}",
        "{{ gone | list }}",
        "{{ gone | items }}",
        "{{ gone | tojson }}",
        "{{ gone | int }}",
        "{{ gone + 1 }}",
        "{{ 1 - gone }}",
        "{{ gone < 1 }}",
        "{{ gone | length }}",
        "{{ gone() }}",
        "{{ gone.items() }}",
        "{{ 1 in gone }}",
        "{{ gone ~ 'x' }}",
        "{% for x in gone %}{% endfor %}",
        "{{ nothing.a.b }}",
        "{{ rows[7] }}",
        "{{ rows[7].x }}",
        "{{ gone and 1 }}",
        "{{ 'x' | int }}",
        "{{ rows | float }}",
        "{{ 1 // 0 }}",
    ],
)
def test_using_what_is_not_there_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered(source)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("range('abc')", "range needs whole numbers, and 'abc' is none: '| int' makes one"),
        ("range(1.5)", "range needs whole numbers, and '1.5' is none"),
        ("range()", "range takes one to three numbers, and 0 were given"),
        ("range(1, 2, 0)", "range needs a step other than 0"),
        ("range(100001)", "range gives at most 100,000 numbers, and more were asked for"),
        ("range(10 ** 30)", "range gives at most 100,000 numbers, and more were asked for"),
    ],
)
def test_range_says_what_it_needs(call: str, said: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered("{{ " + call + " }}")
    assert str(caught.value).startswith(said)


def test_an_error_names_step_task_field_expression_and_the_near_name() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered({"params": [{"q": "page {{ n }} and {{ iter.pag }}"}]})
    assert expressions.describe_location(caught.value, step="load", task="fetch", field="url") == (
        "step 'load', task 'fetch', field 'url.params[0].q': "
        "'iter.pag' is undefined in {{ iter.pag }} (did you mean 'iter.page'?)"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ a.items }}", "the key"),
        ("{{ a.items() | list | length }}", 3),
        ("{{ a._ref }}", "r"),
        ("{{ a['b'] }}", 1),
        ("{{ rows[-1].x }}", 2),
        ("{{ rows.0.y }}", "5"),
        ("{{ 'a-b'.split('-') }}", ["a", "b"]),
        ("{{ '{} {x}'.format(1, x=2) }}", "1 2"),
        ("{{ day.strftime('%Y') }}", "2026"),
        ("{{ (day - timedelta(days=1)).isoformat() }}", "2026-01-01T00:00:00+00:00"),
        ("{{ a.get('zz', 5) }}", 5),
        ("{{ now() }}", NOW.isoformat()),
        ("{{ today() }}", "2026-01-02"),
        ("{{ uuid4() }}", "0-0-0-0-7"),
        ("{{ dict(a=1) }}", {"a": 1}),
        ("{{ range(3) | list }}", [0, 1, 2]),
        ("{{ [3, 4] | random }}", 4),
        ("{% set s = namespace(t=0) %}{% set s.t = s.t + n %}{{ s.t }}", "7"),
    ],
)  # fmt: skip
def test_attributes_are_keys_and_methods_exist_in_calls_only(source: str, expected: Any) -> None:
    assert rendered(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ a.__init__ }}",
        "{{ now.__globals__ }}",
        "{{ range.__self__ }}",
        "{{ rows.append(1) }}",
        "{{ a.update({}) }}",
        "{{ a.pop('b') }}",
        "{{ day.year }}",
        "{{ '{0.__class__}'.format(n) }}",
        "{{ '{:9999999999}'.format(n) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ 'x'.ljust(9999999999) }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ 'a' * 9999999999 }}",
        "{{ [0] * 9999999999 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ range(1000000) }}",
        "{{ lipsum() }}",
        "{{ cycler }}",
        "{{ n() }}",
        "{{ range }}",
        "{{ a | attr('b') }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% macro m() %}{% endmacro %}",
        "{% block b %}{% endblock %}",
        "{% for x in rows recursive %}{% endfor %}",
        "{{ self }}",
        "{{ rows | map('attr', 'x') | list }}",
        "{{ '' | encrypt_secret }}",
    ],
)
def test_nothing_of_python_shows_through(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ mixed | tojson }}", '{"b":[1,null,true],"a":"é"}'),
        ("{{ '<a>' | tojson }}", '"<a>"'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{{ '[1, {\"a\": null}]' | fromjson }}", [1, {"a": None}]),
        ("{{ name | sql_literal }}", "'O''Hara'"),
        ("{{ [flag, nothing, n, -1] | map('sql_literal') | list }}", ["true", "NULL", "7", "(-1)"]),
        ("{{ {'a': 'x'} | sql_literal }}", "'{\"a\":\"x\"}'"),
        ("{{ 'my\"t' | sql_ident }}", '"my""t"'),
        ("{{ 'a b' | b64encode | b64decode }}", "a b"),
        ("{{ 'a b/ü' | urlencode | urldecode }}", "a b/ü"),
        ("{{ '' | md5 }}", "d41d8cd98f00b204e9800998ecf8427e"),
        ("{{ 'abc' | sha256 }}",
         "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("{{ 'a1b2' | regex_replace('[0-9]', '-') }}", "a-b-"),
        ("{{ 'a1b2' | regex_search('[0-9]') }}", "1"),
        ("{{ 'a1b2' | regex_findall('[0-9]') }}", ["1", "2"]),
        ("{{ 'a b' | split }}", ["a", "b"]),
        ("{{ rows | pluck('y') }}", ["5", "6"]),
        ("{{ [rows] | pluck('²') }}", [None]),
        ("{{ {'a': 1} | combine({'b': 2}) }}", {"a": 1, "b": 2}),
        ("{{ [[1, [2]], 3] | flatten }}", [1, [2], 3]),
        ("{{ ' 12 ' | to_number }}", 12),
        ("{{ 'Yes' | to_bool }}", True),
        ("{{ '12.7' | int }}", 12),
        ("{{ '0x1f' | int(base=16) }}", 31),
        ("{{ ' 1.5 ' | float }}", 1.5),
        ("{{ '2026-01-02' | to_datetime }}", "2026-01-02T00:00:00+00:00"),
        ("{{ 0 | to_datetime | iso8601 }}", "1970-01-01T00:00:00+00:00"),
        ("{{ rows | sum(attribute='x') }}", 3),
        ("{{ rows | selectattr('x', 'gt', 1) | map(attribute='y') | list }}", ["6"]),
        ("{{ rows | groupby('x') | map(attribute='grouper') | list }}", [1, 2]),
        ("{{ rows | map(attribute='x') }}", [1, 2]),
        ("{{ [3, 1] | sort | first }}", 1),
        ("{{ 'a,b' | replace(',', ';') }}", "a;b"),
    ],
)  # fmt: skip
def test_filters(source: str, expected: Any) -> None:
    assert rendered(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (True, True),
        ("{{ n > 3 }}", True),
        ("n > 3", True),
        ("{{ rows }}", True),
        ("{% if n %} Yes {% endif %}", True),
        ("{{ n }}{{ '' }}", None),
        ("{% if not n %}x{% endif %}", False),
    ],
)
def test_a_condition_has_python_truth(source: Any, expected: Any) -> None:
    condition = compile_condition(source)
    if expected is None:
        with pytest.raises(TemplateError, match="neither true nor false"):
            condition.is_true(SCOPE)
    else:
        assert condition.is_true(SCOPE) is expected


def test_names_and_paths_are_known_without_rendering() -> None:
    compiled = compile_value(
        {"q": "{{ get.body.data[0].x }}", "r": ["{{ iter.a.items() }} {{ steps['a/b'].c }}"]}
    )
    assert compiled.names == {"get", "iter", "steps"}
    assert compiled.paths == {"get.body.data", "iter.a", "steps.a/b.c"}
    assert not compiled.is_constant
    looped = compile_value("{% for r in rows %}{{ r.x }}{{ now() }}{{ range(2) }}{% endfor %}")
    assert looped.names == {"rows", "now"}


def test_a_template_is_compiled_once() -> None:
    assert compile_value("{{ once.only }}") is compile_value("{{ once.only }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ a", "unexpected end of template"),
        ("{{ a | uper }}", "unknown filter 'uper'"),
        ("{{ a is defind }}", "unknown test 'defind'"),
        ("{% if a %}", "end of template"),
    ],
)
def test_a_template_that_cannot_be_compiled_says_why(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        compile_value(source)


@pytest.mark.parametrize(
    "source",
    [
        "+".join(["1"] * 5000),
        "(" * 5000 + ")" * 5000,
        "a" + ".b" * 5000,
        "not " * 5000 + "a",
        "a" + " | string" * 5000,
        "[" * 3000 + "]" * 3000,
    ],
)
def test_a_template_that_is_nested_too_deeply_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="too deeply nested"):
        compile_value("{{ " + source + " }}")


def test_statements_keep_the_way_to_what_is_undefined() -> None:
    with pytest.raises(TemplateError, match=r"'iter\.gone' is undefined in \{% if n"):
        rendered("{% if n %}{{ iter.gone }}{% endif %}")
