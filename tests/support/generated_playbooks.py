# ruff: noqa: E501, S608 - a playbook reads best with one task to a line; its SQL is its own
"""Playbooks drawn at random over tools and types, each with what plain Python says it gives.

A playbook begins with rows of every kind of value and passes them on from step to step: through
DuckDB in memory and in files, Python, plain files, transfers, PostgreSQL and loops. Every step is
described twice: as YAML, and as a function over a list of rows.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

Row = dict[str, Any]
Change = Callable[[list[Row]], list[Row]]

COLUMNS = ("i", "k", "n", "t", "b")
TYPES = ["int64", "int64", "decimal128(12, 2)", "string", "bool"]
_KEEP = 'return {"columns": list("iknTb".lower()), "types": TYPES, "rows": rows}'.replace(
    "TYPES", json.dumps(TYPES)
)

rows_of_every_kind = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.one_of(
                st.none(),
                st.integers(-5, 5),
                st.sampled_from([2**53 + 1, 2**62, -(2**62), 2**63 - 5]),
            ),
            "n": st.one_of(
                st.none(),
                st.decimals(-9_999_999_999, 9_999_999_999, places=2).map(str),
                st.sampled_from(["0.10", "0.20", "-0.01", "9999999999.99"]),
            ),
            "t": st.one_of(
                st.none(),
                st.sampled_from(
                    ["", " ", "007", "null", "a,b", 'say "x"', "zeile\nzwei", "ß∂ƒ", "1e5"]
                ),
                st.text("abcxyz0123 ',\"{}%:;$\\é", max_size=12),
            ),
            "b": st.one_of(st.none(), st.booleans()),
        }
    ),
    min_size=1,
    max_size=6,
).map(lambda rows: [{"i": index, **row} for index, row in enumerate(rows)])


class Stage(Struct, frozen=True):
    """A part of a playbook: its steps as lines of YAML, its last step's name, and what it does."""

    lines: tuple[str, ...]
    last: str
    change: Change


def _step(name: str, tool: str, following: str | None, *, extra: str = "") -> str:
    arcs = f"\n    next: {{arcs: [{{step: {following}}}]}}" if following else ""
    return f"  - step: {name}{extra}\n    tool: {tool}{arcs}"


def _same(rows: list[Row]) -> list[Row]:
    return rows


def _select(place: int, before: str) -> Stage:
    name = f"select_{place}"
    query = "SELECT i, k, n, t, b FROM t WHERE b IS NOT FALSE ORDER BY i"
    tool = f'{{kind: duckdb, database: ":memory:", inputs: {{t: "{{{{ {before} }}}}"}}, query: "{query}"}}'
    return Stage(
        (_step(name, tool, None),), name, lambda rows: [r for r in rows if r["b"] is not False]
    )


def _table(place: int, before: str) -> Stage:
    make, read = f"make_{place}", f"read_{place}"
    first = f'{{kind: duckdb, database: work.duckdb, inputs: {{t: "{{{{ {before} }}}}"}}, query: "CREATE TABLE t{place} AS SELECT * FROM t"}}'
    second = f'{{kind: duckdb, database: work.duckdb, query: "SELECT i, k, n, t, b FROM t{place} ORDER BY i"}}'
    return Stage((_step(make, first, read), _step(read, second, None)), read, _same)


def _python(place: int, before: str) -> Stage:
    name = f"python_{place}"
    code = f"[r.update(k=None if r['k'] is None else r['k'] - 1) for r in rows]; {_KEEP}"
    tool = f'{{kind: python, input: {{rows: "{{{{ {before}.rows }}}}"}}, code: {json.dumps(code)}}}'
    return Stage(
        (_step(name, tool, None),),
        name,
        lambda rows: [{**r, "k": None if r["k"] is None else r["k"] - 1} for r in rows],
    )


def _file(place: int, before: str) -> Stage:
    write, read = f"write_{place}", f"load_{place}"
    writing = f"import json; open('f{place}.json', 'w').write(json.dumps(rows)); return len(rows)"
    reading = f"import json; rows = json.load(open('f{place}.json')); {_KEEP}"
    first = (
        f'{{kind: python, input: {{rows: "{{{{ {before}.rows }}}}"}}, code: {json.dumps(writing)}}}'
    )
    second = f"{{kind: python, code: {json.dumps(reading)}}}"
    return Stage((_step(write, first, read), _step(read, second, None)), read, _same)


def _parquet(place: int, before: str) -> Stage:
    move, read = f"move_{place}", f"scan_{place}"
    first = f'{{kind: transfer, source: {{type: data, data: "{{{{ {before} }}}}"}}, target: {{type: file, uri: f{place}.parquet, mode: replace}}}}'
    second = f'{{kind: duckdb, database: ":memory:", query: "SELECT i, k, n, t, b FROM read_parquet(\'f{place}.parquet\') ORDER BY i"}}'
    return Stage((_step(move, first, read), _step(read, second, None)), read, _same)


def _postgres(place: int, before: str) -> Stage:
    make, move, read = f"create_{place}", f"copy_{place}", f"fetch_{place}"
    table = f"generated_{{{{ execution_id }}}}_{place}"
    first = f'{{kind: postgres, auth: pg_target, query: "CREATE TABLE IF NOT EXISTS {table} (i bigint PRIMARY KEY, k bigint, n numeric(12,2), t text, b boolean)"}}'
    second = f'{{kind: transfer, source: {{type: data, data: "{{{{ {before} }}}}"}}, target: {{type: postgres, auth: pg_target, table: "{table}", mode: upsert, key: i}}}}'
    third = f'{{kind: postgres, auth: pg_target, query: "SELECT i, k, n, t, b FROM {table} ORDER BY i"}}'
    return Stage(
        (_step(make, first, move), _step(move, second, read), _step(read, third, None)), read, _same
    )


def _loop(place: int, before: str) -> Stage:
    make, fill, read = f"begin_{place}", f"fill_{place}", f"end_{place}"
    table = f"l{place}"
    first = f'{{kind: duckdb, database: loops.duckdb, query: "CREATE TABLE {table} (i BIGINT, k BIGINT, n DECIMAL(12,2), t VARCHAR, b BOOLEAN)"}}'
    second = f'{{kind: duckdb, database: loops.duckdb, query: "INSERT INTO {table} VALUES (:i, :k, :n, :t, :b)", params: "{{{{ iter.r }}}}"}}'
    loop = f'\n    loop: {{in: "{{{{ {before}.rows }}}}", iterator: r, spec: {{mode: sequential}}}}'
    third = f'{{kind: duckdb, database: loops.duckdb, query: "SELECT i, k, n, t, b FROM {table} ORDER BY i"}}'
    return Stage(
        (
            _step(make, first, fill),
            _step(fill, second, read, extra=loop),
            _step(read, third, None),
        ),
        read,
        _same,
    )


STAGES = (_select, _table, _python, _file, _parquet, _postgres, _loop)
SERVERLESS_STAGES = tuple(stage for stage in STAGES if stage is not _postgres)


class Generated(Struct, frozen=True):
    """A playbook's `workflow` and the rows that its last step must give."""

    body: str
    expected: list[Row]


@st.composite
def generated_playbooks(draw: st.DrawFn, *, has_postgres: bool) -> Generated:
    """Draw a playbook of two to four stages."""
    rows = draw(rows_of_every_kind)
    known = STAGES if has_postgres else SERVERLESS_STAGES
    chosen = draw(st.lists(st.sampled_from(known), min_size=2, max_size=4))
    code = f"rows = json.loads({json.dumps(rows)!r}); {_KEEP}"
    begin = f"{{kind: python, code: {json.dumps(code)}}}"
    stages = [Stage((_step("start", begin, None),), "start", _same)]
    for place, make in enumerate(chosen, start=1):
        stages.append(make(place, stages[-1].last))
    lines: list[str] = []
    expected = rows
    result = f'{{kind: noop, result: {{rows: "{{{{ {stages[-1].last}.rows }}}}"}}}}'
    end = f'{_step("end", result, None)}\n    set: {{ctx.rows: "{{{{ end.rows }}}}"}}'
    stages.append(Stage((end,), "end", _same))
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        *earlier, last = stage.lines
        lines += earlier
        if following is None:
            lines.append(last)
        else:
            first = following.lines[0].split("step: ", 1)[1].split("\n", 1)[0]
            lines.append(f"{last}\n    next: {{arcs: [{{step: {first}}}]}}")
        expected = stage.change(expected)
    return Generated("workflow:\n" + "\n".join(lines) + "\n", expected)


def plain_values(rows: list[Row]) -> list[Row]:
    """Write rows so that equal values are equal: decimals by their number, whatever shows them."""
    return [
        {
            name: None
            if row[name] is None
            else str(Decimal(str(row[name])).quantize(Decimal("0.01")))
            if name == "n"
            else row[name]
            for name in COLUMNS
        }
        for row in rows
    ]
