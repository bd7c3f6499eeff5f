"""Datasets in documents: what each kind of task may say of them, and what it is told instead."""

import json

import pytest

from noetl_playbook.parse.playbook import parse_playbook

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t}
workflow:
  - step: s
    tool:
"""
DUCKDB = "kind: duckdb, query: SELECT 1"
POSTGRES = "kind: postgres, auth: db, query: SELECT 1"
SPARK = "kind: spark, sql: SELECT 1"
ROWS = "source: {type: data, data: []}"
TABLE = "target: {type: postgres, auth: db, table: t}"


def problems_of(task: str) -> str:
    playbook = parse_playbook(f"{HEAD}      {{{task}}}\n")
    return "\n".join(
        f"{problem.code} {problem.message} {problem.hint or ''}" for problem in playbook.problems
    )


@pytest.mark.parametrize("kind", [SPARK, DUCKDB])
@pytest.mark.parametrize(
    "source",
    [
        {"path": "s3://b/day=*/", "auth": "lake", "format": "csv", "on_bad_row": "divert"},
        {"path": "{{ workload.place }}", "auth": "lake", "columns": ["a"]},
        {"delta": "s3://b/t", "auth": "lake", "as_of": 3},
        {"iceberg": {"table": "a.b", "catalog": "pg", "warehouse": "s3://b/w"}, "auth": "lake"},
        {
            "iceberg": {"table": "{{ workload.run }}.b", "catalog": "pg", "warehouse": "s3://b/w"},
            "auth": "lake",
        },
        {"path": "a.csv", "delimiter": ";", "schema": "id BIGINT"},
    ],
)
def test_one_description_of_a_source_serves_every_engine(
    kind: str, source: dict[str, object]
) -> None:
    assert problems_of(f"{kind}, inputs: {json.dumps({'o': source})}") == ""
    assert problems_of(f"kind: transfer, source: {json.dumps(source)}, {TABLE}") == ""


@pytest.mark.parametrize("task", [SPARK, DUCKDB, POSTGRES])
def test_one_description_of_a_sink_serves_every_engine(task: str) -> None:
    sink = '{path: "s3://b/d/", auth: lake, partition_by: [day], mode: append, file_size: 64MB}'
    assert problems_of(f"{task}, output: {sink}") == ""
    assert problems_of(f"kind: transfer, {ROWS}, target: {sink}") == ""
    upsert = '{delta: "s3://b/d", auth: lake, mode: upsert, key: id}'
    assert problems_of(f"{task}, output: {upsert}") == ""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{path: a/, delimitr: x}", "'delimitr'"),
        ("{path: a/, delta: b}", "one of path, iceberg, delta"),
        ('{path: "ftp://a/b", columns: [a]}', "the scheme 'ftp'"),
        (
            "{path: a.parquet, delimiter: ';'}",
            "'delimiter' is for csv, and this",
        ),
        ("{path: a/, on_bad_row: drop}", "on_bad_row is 'drop'"),
        ("{path: a/, as_of: 3}", "'as_of' is for iceberg and delta"),
        ("{path: a/, format: xml}", "format is 'xml'"),
        ("{delta: a, header: false}", "'header' is for csv"),
        ("{iceberg: {table: a}}", "iceberg is {table: sales.daily"),
    ],
)
def test_a_wrong_source_is_told_alike_by_every_engine(source: str, told: str) -> None:
    for task in (SPARK, DUCKDB):
        assert told in problems_of(f"{task}, inputs: {{o: {source}}}"), task
    assert told in problems_of(f"kind: transfer, source: {source}, {TABLE}")


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("{path: a/, mode: replace}", "mode is 'replace': use error, append"),
        ("{path: a/, mode: upsert, key: id}", "is for iceberg and delta"),
        ("{path: a/, mode: overwrite_partitions}", "needs 'partition_by'"),
        ("{path: a/, file_size: 1}", "it is from 1MB to 5GB"),
        ("{path: a/, format: avro}", "format is 'avro'"),
        ("{delta: a, format: csv}", "files of a lake table are parquet"),
        ("{path: a/, compression: rar}", "compression is 'rar'"),
    ],
)
def test_a_wrong_sink_is_told_alike_by_every_engine(sink: str, told: str) -> None:
    for task in (SPARK, DUCKDB, POSTGRES):
        assert told in problems_of(f"{task}, output: {sink}"), task
    assert told in problems_of(f"kind: transfer, {ROWS}, target: {sink}")


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (f"{DUCKDB}, inputs: {{o: {{path: a/, expect: {{nul: [a]}}}}}}", "unknown key 'nul'"),
        (f"{DUCKDB}, inputs: {{o: {{rows: [], expect: {{nul: [a]}}}}}}", "unknown key 'nul'"),
        (f"{DUCKDB}, inputs: {{o: {{path: a/, expect: {{nul: '{{{{ x }}}}'}}}}}}", "key 'nul'"),
        (f"{POSTGRES}, output: {{path: a/, expect: {{on_fail: warn}}}}", "names no check"),
        (f"{POSTGRES}, output: {{path: a/, expect: {{schema: [a]}}}}", "schema is 'id BIGINT"),
        (f"kind: transfer, source: {{path: a/, expect: {{range: a}}}}, {TABLE}", "range maps"),
        (f"kind: transfer, {ROWS}, {TABLE}, output: {{path: a/}}", "writes into its 'target'"),
        ("kind: http, url: a, output: {path: a/}", "a task of kind http writes no dataset"),
        (f"{DUCKDB}, stream: {{}}, output: {{path: a/}}", "into the dataset of 'output', and not"),
        (f"{POSTGRES}, stream: {{}}, output: {{path: a/}}", "into the dataset of 'output', and"),
        (f"kind: transfer, source: {{path: a/, table: t}}, {TABLE}", "'table'"),
        (f"kind: transfer, source: {{type: dataset}}, {TABLE}", "'path'"),
        (f"kind: transfer, source: {{uri: a.csv}}, {TABLE}", "needs 'type'"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_with_the_way_out(task: str, told: str) -> None:
    assert told in problems_of(task)


@pytest.mark.parametrize(
    "expect",
    [
        "'{{ x }}'",
        "{row_count: {min: '{{ x }}'}}",
        "{in: {a: '{{ x }}'}}",
        "{not_null: [a], on_fail: '{{ x }}'}",
        "{freshness: {column: at, within: '{{ x }}h'}}",
        "{range: {a: '{{ x }}'}}",
        "{foreign_key: '{{ x }}'}",
    ],
)
def test_checks_that_the_run_fills_in_are_left_to_it(expect: str) -> None:
    assert "E104" not in problems_of(f"{DUCKDB}, inputs: {{o: {{path: a/, expect: {expect}}}}}")
    assert "E104" not in problems_of(f"{DUCKDB}, output: {{path: a/, expect: {expect}}}")


def test_no_increment_goes_into_a_dataset() -> None:
    step = "{from: state.orders, cursor: at, initial: 0}"
    document = (
        f"{HEAD}      {{kind: transfer, {ROWS}, target: {{path: a/}}}}\n    incremental: {step}\n"
    )
    problems = [problem for problem in parse_playbook(document).problems if problem.code != "W912"]
    assert [item.message for item in problems] == [
        "no increment is moved into a dataset, which keeps no state with its rows"
    ]
