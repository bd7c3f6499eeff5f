"""The language's lists of filters, methods and names: each entry is there, and nothing else."""

from datetime import UTC, datetime
from typing import Any

import pytest

from noetl_playbook.model.language_names import SEAL
from noetl_playbook.templates import sandbox
from noetl_playbook.templates.expressions import TemplateError, compile_value
from noetl_playbook.templates.lookup import SafeCall
from noetl_playbook.templates.scope import ScopeParts, TemplateScope, TimeSource, last_name_key

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROWS = [{"x": 2, "k": "b"}, {"x": 1, "k": "a"}]
CLOCK = TimeSource(now=lambda: NOW, new_uuid=lambda: "0-0-0-0-1")
SCOPE = TemplateScope(
    {**CLOCK.build_names(), SEAL: SafeCall(lambda text: f"sealed({text})")},
    ScopeParts(workload={"rows": ROWS, "day": NOW, "text": "Ab c", "none": None}),
)


def rendered(source: str) -> Any:
    return compile_value(source).render(SCOPE)


FILTERS = {
    "abs": ("-2 | abs", 2),
    "batch": ("[1, 2, 3] | batch(2) | list", [[1, 2], [3]]),
    "capitalize": ("'aB' | capitalize", "Ab"),
    "center": ("'a' | center(3)", " a "),
    "default": ("gone | default(1)", 1),
    "d": ("gone | d(1)", 1),
    "dictsort": ("{'b': 1, 'a': 2} | dictsort", [["a", 2], ["b", 1]]),
    "first": ("[1, 2] | first", 1),
    "float": ("'1.5' | float", 1.5),
    "format": ("'%s-%s' | format(1, 'a')", "1-a"),
    "groupby": ("rows | groupby('k') | map('first') | list", ["a", "b"]),
    "indent": ("'a\nb' | indent(1)", "a\n b"),
    "int": ("'7' | int", 7),
    "items": ("{'a': 1} | items | list", [["a", 1]]),
    "join": ("[1, 'a'] | join('-')", "1-a"),
    "last": ("[1, 2] | last", 2),
    "length": ("'abc' | length", 3),
    "count": ("[1] | count", 1),
    "list": ("'ab' | list", ["a", "b"]),
    "lower": ("'AB' | lower", "ab"),
    "map": ("rows | map(attribute='x') | list", [2, 1]),
    "max": ("[1, 3, 2] | max", 3),
    "min": ("[2, 1] | min", 1),
    "pprint": ("[1] | pprint", "[1]"),
    "random": ("[4, 5] | random", 5),
    "reject": ("[1, 2] | reject('odd') | list", [2]),
    "rejectattr": ("rows | rejectattr('x', 'eq', 1) | list", ROWS[:1]),
    "replace": ("'aXbX' | replace('X', '-', 1)", "a-bX"),
    "reverse": ("[1, 2] | reverse | list", [2, 1]),
    "round": ("1.256 | round(1)", 1.3),
    "select": ("[1, 2] | select('odd') | list", [1]),
    "selectattr": ("rows | selectattr('x', 'eq', 1) | list", ROWS[1:]),
    "slice": ("[1, 2, 3] | slice(2) | list", [[1, 2], [3]]),
    "sort": ("rows | sort(attribute='x') | map(attribute='x') | list", [1, 2]),
    "string": ("true | string", "True"),
    "striptags": ("'<b>a</b>' | striptags", "a"),
    "sum": ("rows | sum(attribute='x', start=1)", 4),
    "title": ("'a b' | title", "A B"),
    "trim": ("' a ' | trim", "a"),
    "truncate": ("'abcdefgh' | truncate(5, true, '', 0)", "abcde"),
    "unique": ("[1, 1, 2] | unique | list", [1, 2]),
    "upper": ("'a' | upper", "A"),
    "urlencode": ("'a b&' | urlencode", "a%20b%26"),
    "wordcount": ("'a b' | wordcount", 2),
    "tojson": ("{'b': '<'} | tojson", '{"b":"<"}'),
    "fromjson": ("'[1]' | fromjson", [1]),
    "b64encode": ("'a' | b64encode", "YQ=="),
    "b64decode": ("'YQ==' | b64decode", "a"),
    "urldecode": ("'a%20b+c' | urldecode", "a b c"),
    "md5": ("'a' | md5", "0cc175b9c0f1b6a831c399e269772661"),
    "sha256": ("'a' | sha256 | length", 64),
    "regex_replace": ("'a1' | regex_replace('([a-z])', '<\\\\1>')", "<a>1"),
    "regex_search": ("'a1' | regex_search('[0-9]')", "1"),
    "regex_findall": ("'a1b2' | regex_findall('[0-9]')", ["1", "2"]),
    "split": ("'a,b' | split(',')", ["a", "b"]),
    "sql_literal": ("text | sql_literal", "'Ab c'"),
    "sql_ident": ("'a b' | sql_ident", '"a b"'),
    "pluck": ("rows | pluck('k')", ["b", "a"]),
    "combine": ("{'a': 1} | combine({'a': 2})", {"a": 2}),
    "flatten": ("[[1], [[2]]] | flatten(2)", [1, 2]),
    "to_number": ("'1.5' | to_number", 1.5),
    "to_bool": ("'no' | to_bool", False),
    "to_datetime": ("'2026-01-02' | to_datetime", "2026-01-02T00:00:00+00:00"),
    "iso8601": ("day | iso8601", NOW.isoformat()),
    "encrypt_secret": ("['a'] | map('encrypt_secret') | list", ["sealed(a)"]),
}


def test_every_filter_has_a_case_and_there_are_no_others() -> None:
    names = {name for name in sandbox.get_environment("text").filters if name.isidentifier()}
    assert names == FILTERS.keys()


@pytest.mark.parametrize(("source", "expected"), FILTERS.values(), ids=FILTERS.keys())
def test_filter(source: str, expected: Any) -> None:
    assert rendered("{{ " + source + " }}") == expected
    by_jinja = "{% set found = (" + source + ") %}{{ found | tojson }}"
    assert compile_value("{{ " + source + " | tojson }}").render(SCOPE) == rendered(by_jinja)


METHODS = {
    "lower": ("text.lower()", "ab c"),
    "upper": ("text.upper()", "AB C"),
    "strip": ("' a '.strip()", "a"),
    "lstrip": ("' a '.lstrip()", "a "),
    "rstrip": ("' a '.rstrip()", " a"),
    "split": ("text.split()", ["Ab", "c"]),
    "rsplit": ("'a-b-c'.rsplit('-', 1)", ["a-b", "c"]),
    "splitlines": ("'a\nb'.splitlines()", ["a", "b"]),
    "replace": ("'aa'.replace('a', 'b', 1)", "ba"),
    "startswith": ("text.startswith('A')", True),
    "endswith": ("text.endswith('A')", False),
    "title": ("'a b'.title()", "A B"),
    "capitalize": ("'ab'.capitalize()", "Ab"),
    "zfill": ("'7'.zfill(3)", "007"),
    "ljust": ("'a'.ljust(2)", "a "),
    "rjust": ("'a'.rjust(2)", " a"),
    "join": ("'-'.join(['a', 'b'])", "a-b"),
    "count": ("'aba'.count('a')", 2),
    "find": ("'ab'.find('b')", 1),
    "isdigit": ("'1'.isdigit()", True),
    "isalpha": ("'1'.isalpha()", False),
    "format": ("'{0}{b}'.format('a', b=1)", "a1"),
    "keys": ("rows[0].keys() | list", ["x", "k"]),
    "values": ("rows[0].values() | list", [2, "b"]),
    "items": ("rows[0].items() | list", [["x", 2], ["k", "b"]]),
    "get": ("rows[0].get('z', 9)", 9),
    "index": ("[1, 2].index(2)", 1),
    "isoformat": ("day.isoformat()", NOW.isoformat()),
    "strftime": ("day.strftime('%Y')", "2026"),
    "date": ("day.date()", "2026-01-02"),
    "time": ("day.time()", "03:04:05"),
    "timestamp": ("day.timestamp()", NOW.timestamp()),
}


@pytest.mark.parametrize(("source", "expected"), METHODS.values(), ids=METHODS.keys())
def test_method(source: str, expected: Any) -> None:
    assert rendered("{{ " + source + " }}") == expected


@pytest.mark.parametrize(
    "source",
    [
        *("text.casefold()", "text.encode()", "text.translate({})", "text.format_map({})"),
        *("text.partition(' ')", "text.swapcase()", "rows.copy()", "rows[0].copy()"),
        *("rows[0].fromkeys([])", "day.astimezone()", "day.utcnow()", "day.ctime()"),
        *("7 .bit_length()", "true.real()", "none.x()"),
    ],
)
def test_no_other_method_can_be_called(source: str) -> None:
    with pytest.raises(TemplateError):
        rendered("{{ " + source + " }}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *(("1 is odd", True), ("1 is even", False), ("4 is divisibleby(2)", True)),
        *(("gone is defined", False), ("gone is undefined", True), ("none is none", True)),
        *(("true is boolean", True), ("1 is integer", True), ("1.5 is float", True)),
        *(("'a' is string", True), ("{} is mapping", True), ("[] is sequence", True)),
        *(("[] is iterable", True), ("1 is number", True), ("1 is in [1]", True)),
        *(("1 is eq 1", True), ("1 is ne 1", False), ("2 is gt 1", True), ("2 is le 1", False)),
        *(("'a' is lower", True), ("'a' is upper", False), ("true is true", True)),
        *(("1 is sameas true", False), ("now is callable", True), ("'a' is filter", False)),
    ],
)
def test_every_test_of_jinja_is_there(source: str, expected: bool) -> None:  # noqa: FBT001 - the case's own value
    assert rendered("{{ " + source + " }}") is expected


@pytest.mark.parametrize(
    ("hidden_in", "expected"),
    [
        ((), "fixed"),
        (("fixed",), "variables"),
        (("fixed", "variables"), "tasks"),
        (("fixed", "variables", "tasks"), "iterators"),
        (("fixed", "variables", "tasks", "iterators"), "steps"),
        (("fixed", "variables", "tasks", "iterators", "steps"), "ctx"),
        (("fixed", "variables", "tasks", "iterators", "steps", "ctx"), "workload"),
        (("fixed", "variables", "tasks", "iterators", "steps", "ctx", "workload"), "input"),
    ],
)
def test_bare_names_are_looked_for_in_order(hidden_in: tuple[str, ...], expected: str) -> None:
    places = ("variables", "tasks", "iterators", "steps", "ctx", "workload")
    parts = {place: {} if place in hidden_in else {"input": place} for place in places}
    fixed = {last_name_key("input"): "input"} | ({} if "fixed" in hidden_in else {"input": "fixed"})
    assert (
        compile_value("{{ input }}").render(TemplateScope(fixed, ScopeParts(**parts))) == expected
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ result }}", {"n": 1}),
        ("{{ response.n }}", 1),
        ("{{ outcome.data.n }}", 1),
        ("{{ error | default('none') }}", "none"),
        ("{{ payload.p }}", 2),
        ("{{ args.i }}", 3),
        ("{{ args.c }}", 4),
        ("{{ vars.c }}", 4),
        ("{{ parent_execution_id }}", "9"),
    ],
)
def test_older_names_still_lead_somewhere(source: str, expected: Any) -> None:
    fixed = {
        "output": {"data": {"n": 1}},
        last_name_key("payload"): {"p": 2},
        last_name_key("input"): {"i": 3},
        last_name_key("parent_execution_id"): "9",
    }
    assert compile_value(source).render(TemplateScope(fixed, ScopeParts(ctx={"c": 4}))) == expected
