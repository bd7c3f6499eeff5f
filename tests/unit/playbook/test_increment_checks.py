"""What lint says of `incremental`: unknown keys, wrong types, and steps that cannot read so."""

import pytest

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.sections.increments import find_reading_task, get_state_name
from noetl_playbook.source.problems import Level, Problem

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n  - step: load\n"
GOOD = 'cursor: at, from: state.orders, lag: 2h, initial: "2024-01-01"'
QUERY = (
    "{kind: postgres, auth: db, query: 'SELECT 1 WHERE at >= :since', "
    'params: {since: "{{ increment.since }}"}}'
)
TRANSFER = (
    "{kind: transfer, source: {type: postgres, auth: a, query: SELECT 1}, "
    "target: {type: postgres, auth: a, table: t}, %s}"
)


def problems(incremental: str, tool: str = QUERY, rest: str = "") -> list[Problem]:
    text = f"{HEAD}    incremental: {{{incremental}}}\n    tool: {tool}\n{rest}"
    return list(parse_playbook(text, level=Level.STRICT).problems)


def test_a_step_that_reads_increments_has_no_problem_and_keeps_its_block() -> None:
    text = f"{HEAD}    incremental: {{{GOOD}}}\n    tool: {QUERY}\n"
    parsed = parse_playbook(text, level=Level.STRICT)
    assert parsed.problems == ()
    assert parsed.playbook is not None
    incremental = parsed.playbook.workflow[0].incremental
    assert incremental is not None
    assert (get_state_name(incremental), incremental.cursor, incremental.lag) == (
        "orders",
        "at",
        7200,
    )


@pytest.mark.parametrize(
    ("incremental", "code", "place", "says"),
    [
        ("from: state.orders, initial: 0", "E104", "incremental", "'cursor' is required"),
        ("cursor: at, initial: 0", "E104", "incremental", "'from' is required"),
        ("cursor: at, from: state.orders", "E104", "incremental", "'initial' is required"),
        (f"{GOOD}, lga: 1", "E103", "incremental.lga", "unknown key 'lga'"),
        ("cursor: at, from: orders, initial: 0", "E104", "incremental.from", "names no state"),
        ("cursor: at, from: state.a-b, initial: 0", "E104", "incremental.from", "names no state"),
        ("cursor: '', from: state.a, initial: 0", "E104", "incremental.cursor", "a column"),
        (f"{GOOD}, type: moment", "E104", "incremental.type", "expected one of date, integer"),
        (f"{GOOD}, type: integer", "E104", "incremental.initial", "is not of type integer"),
        ("cursor: a, from: state.a, initial: 1.5", "E104", "incremental.initial", "type text"),
        ("cursor: a, from: state.a, initial: 0, lag: 2h", "E104", "incremental.lag", "whole"),
        ("cursor: a, from: state.a, initial: 0, lag: -1", "E104", "incremental.lag", "expected"),
        ("cursor: a, from: state.a, initial: x, lag: 1", "E104", "incremental.lag", "no lag"),
        (
            'cursor: a, from: state.a, initial: "2024-01-01", type: date, lag: 1h',
            "E104",
            "incremental.lag",
            "whole days",
        ),
        (f"{GOOD}, task: other", "E202", "incremental.task", "'other' is not a task"),
    ],
)
def test_a_wrong_block_is_named_with_its_place(
    incremental: str, code: str, place: str, says: str
) -> None:
    found = [item for item in problems(incremental) if item.code != "E304"]
    assert [(item.code, item.path) for item in found] == [(code, f"workflow[0].{place}")], found
    assert says in found[0].message


@pytest.mark.parametrize(
    ("tool", "rest", "says"),
    [
        ("{kind: shell, cmds: ls}", "", "a task of kind shell reads no increments"),
        (f"[{TRANSFER % 'mode: upsert, key: i'}, {TRANSFER % 'mode: upsert, key: i'}]", "",
         "has one transfer"),
        ("{kind: postgres, auth: a, query: SELECT 1, stream: {}}", "", "a task that streams"),
        (QUERY, "    loop: {in: [1], iterator: it, spec: {mode: parallel}}\n",
         "does not go with loop"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_read_increments_is_told_why(tool: str, rest: str, says: str) -> None:
    assert any(item.code == "E104" and says in item.message for item in problems(GOOD, tool, rest))


@pytest.mark.parametrize(
    ("fields", "is_warned"),
    [
        ("mode: append", True),
        ("mode: insert", True),
        ("chunk_size: 10", True),
        ("mode: upsert, key: id", False),
        ("mode: replace", False),
        ('mode: "{{ workload.mode }}"', False),
    ],
)
def test_an_append_is_warned_of(fields: str, *, is_warned: bool) -> None:
    codes = [item.code for item in problems(GOOD, TRANSFER % fields)]
    assert ("W912" in codes) is is_warned


def test_the_state_follows_what_the_transfer_wrote() -> None:
    tool = (
        f"[{{name: fetch, kind: http, url: u}}, {(TRANSFER % 'mode: upsert, key: i')[:-1]}, "
        "name: store}]"
    )
    text = f"{HEAD}    incremental: {{{GOOD}}}\n    tool: {tool}\n"
    playbook = parse_playbook(text).playbook
    assert playbook is not None
    task = find_reading_task(playbook.workflow[0].tool, None)
    assert task is not None
    assert task.name == "store"
    assert any(
        "leave task out" in str(item.hint) for item in problems(f"{GOOD}, task: fetch", tool)
    )


def test_increment_is_a_name_of_such_a_step_alone() -> None:
    other = f"  - step: other\n    tool: {QUERY}\n"
    found = problems(GOOD, QUERY.replace("}}", "}}", 1), f"    next: other\n{other}")
    assert [(item.code, item.step) for item in found] == [("E304", "other")]
