"""Spark tasks of mode stream in documents: what they may say, and what they are told instead."""

import json
from typing import Any

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
TASK: dict[str, Any] = {
    "kind": "spark",
    "mode": "stream",
    "inputs": {"o": {"path": "s3://b/in/", "auth": "lake"}},
    "sql": "SELECT * FROM o",
    "follow": {"checkpoint": "orders"},
    "output": {"path": "s3://b/out/", "auth": "lake", "mode": "append"},
}


def problems_of(**fields: Any) -> str:
    """The problems of a task; a field that is None is left out."""
    task = {name: item for name, item in {**TASK, **fields}.items() if item is not None}
    playbook = parse_playbook(f"{HEAD}      {json.dumps(task)}\n")
    return "\n".join(f"{problem.code} {problem.message}" for problem in playbook.problems)


@pytest.mark.parametrize(
    "follow",
    [
        {"checkpoint": "orders"},
        {"checkpoint": "orders", "trigger": "available_now"},
        {"checkpoint": "orders-v2", "trigger": "10s", "until": "8h", "input": "o"},
        {"checkpoint": "{{ workload.name }}", "trigger": "{{ workload.every }}", "until": "1h"},
        {"checkpoint": "o", "files_per_batch": 10, "watermark": {"column": "at", "delay": "5m"}},
    ],
)
def test_a_stream_says_where_it_goes_on_and_how_often(follow: dict[str, Any]) -> None:
    assert problems_of(follow=follow) == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"follow": None}, "mode stream needs follow"),
        ({"follow": {}}, "follow needs 'checkpoint'"),
        ({"follow": {"checkpoint": "a/b"}}, "checkpoint is a name of letters"),
        ({"follow": {"checkpoint": "o", "tirgger": "1s"}}, "'tirgger' is no key of follow"),
        ({"follow": {"checkpoint": "o", "trigger": "daily"}}, "trigger is 'daily'"),
        ({"follow": {"checkpoint": "o", "trigger": "2h"}}, "at most an hour"),
        ({"follow": {"checkpoint": "o", "until": "2h"}}, "available_now ends by itself"),
        ({"follow": {"checkpoint": "o", "files_per_batch": 0}}, "files_per_batch is 0"),
        ({"follow": {"checkpoint": "o", "watermark": "at"}}, "watermark is {column: at"),
        ({"follow": {"checkpoint": "o", "input": "x"}}, "follow.input names the input"),
        ({"mode": None}, "'follow' belongs to mode: stream"),
        ({"mode": "steam"}, "'mode' takes one of batch, stream"),
        ({"sql": None, "code": "def main(spark, inputs): ..."}, "mode stream takes 'sql'"),
        ({"output": None}, "mode stream writes its batches"),
        ({"output": {"path": "s3://b/out/", "auth": "lake"}}, "output.mode is error"),
        (
            {
                "output": {
                    "path": "s3://b/out/",
                    "auth": "lake",
                    "mode": "overwrite_partitions",
                    "partition_by": ["d"],
                }
            },
            "output.mode is overwrite_partitions",
        ),
        ({"inputs": None}, "mode stream needs 'inputs'"),
        ({"inputs": {"o": {"path": "in/*.csv"}}}, "files of an execution do not arrive"),
        ({"inputs": {"o": {"delta": "s3://b/t", "auth": "lake"}}}, "files that arrive at a 'path'"),
        ({"inputs": {"o": {"auth": "pg", "table": "t"}}}, "files that arrive at a 'path'"),
        (
            {"inputs": {"o": {"path": "s3://b/in/", "auth": "a", "expect": {"not_null": ["id"]}}}},
            "put 'expect' into output",
        ),
    ],
)
def test_what_no_stream_can_be_is_told_before_it_runs(fields: dict[str, Any], told: str) -> None:
    problems = problems_of(**fields)
    assert told in problems, problems
    assert "\n" not in problems, problems


def test_of_several_inputs_one_is_named() -> None:
    inputs = {**TASK["inputs"], "rates": {"auth": "pg", "table": "public.rates"}}
    assert "follow.input names the input" in problems_of(inputs=inputs)
    assert problems_of(inputs=inputs, follow={"checkpoint": "c", "input": "o"}) == ""


TABLE = {"table": "public.orders", "auth": "pg", "mode": "upsert", "key": "id"}


@pytest.mark.parametrize(
    "sink",
    [
        TABLE,
        {"table": "orders", "auth": "{{ workload.db }}", "mode": "append"},
        {"table": "{{ workload.table }}", "auth": "pg", "mode": "{{ workload.mode }}"},
        {"table": "orders", "auth": "pg", "mode": "overwrite", "expect": {"not_null": ["id"]}},
    ],
)
def test_batches_may_go_into_a_table(sink: dict[str, Any]) -> None:
    assert problems_of(output=sink) == ""


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ({**TABLE, "mode": "replace"}, "a table takes append, upsert by 'key', or overwrite"),
        ({**TABLE, "key": None}, "mode upsert of a table, and no other, has 'key'"),
        ({**TABLE, "auth": None}, "a table needs 'auth'"),
        ({**TABLE, "partition_by": ["day"]}, "'partition_by' is for files"),
        ({**TABLE, "path": "s3://b/out/"}, "a dataset has one of path, iceberg, delta, table"),
    ],
)
def test_what_no_table_takes_is_told(sink: dict[str, Any], told: str) -> None:
    sink = {name: item for name, item in sink.items() if item is not None}
    assert told in problems_of(output=sink)


def test_a_table_without_batches_is_refused() -> None:
    told = problems_of(mode="batch", follow=None, output=TABLE)
    assert "output.table is for mode stream" in told
