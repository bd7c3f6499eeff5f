"""Mistakes in what people type and write: each has its message, its exit code and its way out."""

import pytest
from tests.e2e.command_line import CommandLine

pytestmark = pytest.mark.timeout(120)


def test_yaml_that_does_not_parse_has_line_and_column(command_line: CommandLine) -> None:
    file = command_line.write(
        "broken", "workflow:\n  - step: start\n    tool: {kind: noop\n  - step: x\n"
    )
    answer = command_line.type("run", file)
    assert answer.code == 2
    assert f"{file}:7:" in answer.err


def test_an_unknown_step_in_an_arc_brings_the_one_that_was_meant(command_line: CommandLine) -> None:
    arc = "    next: {arcs: [{step: finsh}]}\n"
    step = "  - step: {}\n    tool: {{kind: noop}}\n"
    file = command_line.write(
        "arc", "workflow:\n" + step.format("start") + arc + step.format("finish")
    )
    answer = command_line.type("run", file)
    assert answer.code == 2
    assert "E203" in answer.err
    assert "did you mean 'finish'" in answer.err
    assert command_line.get("/api/catalog/e2e/arc").status_code == 404


def test_a_file_that_is_not_there_is_named(command_line: CommandLine) -> None:
    missing = command_line.folder / "no.yaml"
    answer = command_line.type("run", str(missing))
    assert answer.code == 2
    assert f"There is no file {missing}" in answer.err


@pytest.mark.parametrize("verb", ["status", "events", "cancel"])
def test_an_unknown_execution_is_named(command_line: CommandLine, verb: str) -> None:
    answer = command_line.type(verb, "4711")
    assert answer.code == 2
    assert "there is no execution 4711" in answer.err


def test_a_server_that_does_not_run_is_said_with_the_way_out(command_line: CommandLine) -> None:
    answer = command_line.type("ls", "--server", "http://127.0.0.1:1")
    assert answer.code == 1
    assert "noetl up" in answer.err


def test_a_missing_credential_fails_the_run_and_says_how_to_register_it(
    command_line: CommandLine,
) -> None:
    step = "  - step: start\n    tool: {kind: postgres, auth: pg_missing, query: select 1}\n"
    answer = command_line.type("run", command_line.write("missing", "workflow:\n" + step))
    assert answer.code == 1
    assert "config: credential 'pg_missing' is not registered" in answer.err
    assert "noetl credential put pg_missing" in answer.err
    execution_id = answer.err.split()[1]
    error = command_line.wait_for(execution_id, "FAILED")["error"]
    assert (error["kind"], error["step"]) == ("config", "start")


def test_a_template_error_names_step_task_field_and_expression(command_line: CommandLine) -> None:
    body = """\
workflow:
  - step: begin
    tool:
      - {name: add, kind: python, input: {v: "{{ workload.absent.deeper + 1 }}"}, code: pass}
"""
    answer = command_line.type("run", command_line.write("template", body))
    assert answer.code == 1
    for part in ("template", "'begin'", "'add'", "'input.v'", "{{ workload.absent.deeper + 1 }}"):
        assert part in answer.err


def test_a_failing_statement_has_its_sqlstate(command_line: CommandLine) -> None:
    tool = "{kind: postgres, auth: pg_target, query: select * from no_such_table}"
    file = command_line.write("sql", f"workflow:\n  - step: start\n    tool: {tool}\n")
    answer = command_line.type("run", file)
    assert answer.code == 1
    assert 'relation "no_such_table" does not exist' in answer.err
    assert "42P01" in answer.err
    error = command_line.wait_for(answer.err.split()[1], "FAILED")["error"]
    assert (error["kind"], error["pg_code"]) == ("db_error", "42P01")
