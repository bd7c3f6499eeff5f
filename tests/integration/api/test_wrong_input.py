"""Wrong input at the command line: one clear line, the right exit code, never a traceback."""

from pathlib import Path

import msgspec
import pytest
from tests.support.api import PLAYBOOK
from tests.support.running_api import Noetl, RunningApi


def test_a_file_that_is_not_there_is_named(noetl: Noetl, tmp_path: Path) -> None:
    outcome = noetl("run", str(tmp_path / "no.yaml"))
    assert outcome.code == 2
    assert "There is no file" in outcome.err


def test_yaml_that_does_not_parse_has_line_and_column(
    running_api: RunningApi, noetl: Noetl, tmp_path: Path
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("apiVersion: noetl.io/v2\nkind: [Playbook\nmetadata: x\n")
    outcome = noetl("run", str(file))
    assert outcome.code == 2
    assert f"{file}:3:" in outcome.err
    assert not running_api.world.store.catalog


def test_an_unknown_step_in_an_arc_is_found_before_anything_runs(
    noetl: Noetl, tmp_path: Path
) -> None:
    file = tmp_path / "arc.yaml"
    file.write_text(
        PLAYBOOK + "    next: {arcs: [{step: finsh}]}\n  - step: finish\n    tool: {kind: noop}\n"
    )
    outcome = noetl("run", str(file))
    assert outcome.code == 2
    assert "E203" in outcome.err
    assert "finish" in outcome.err


def test_an_unknown_execution_is_named(noetl: Noetl) -> None:
    for verb in ("status", "events", "cancel"):
        outcome = noetl(verb, "4711")
        assert outcome.code == 2
        assert "there is no execution 4711" in outcome.err
    attached = noetl("run", "--attach", "4711")
    assert attached.code == 2


def test_a_path_that_is_not_registered_is_named(noetl: Noetl) -> None:
    outcome = noetl("run", "demo/none")
    assert outcome.code == 2
    assert "demo/none" in outcome.err


def test_a_server_that_does_not_run_is_said_with_the_way_out(noetl: Noetl) -> None:
    outcome = noetl("ls", "--server", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert "noetl up" in outcome.err


def test_an_address_that_is_none_is_refused(noetl: Noetl) -> None:
    assert noetl("ls", "--server", "localhost:8080").code == 2


def test_errors_are_json_for_programs(noetl: Noetl) -> None:
    outcome = noetl("status", "4711", "--json")
    assert msgspec.json.decode(outcome.out)["error"] == "there is no execution 4711"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "demo/x", "--attach", "1"),
        ("run", "demo/x", "--set", "novalue"),
        ("run", "demo/x", "--set-json", "a={"),
        ("run", "demo/x", "--set", "a=1", "--set", "a.b=2"),
        ("run", "demo/x", "--payload", "/no/such/file.json"),
        ("credential", "put", "x", "--type", "bearer"),
        ("credential", "put", "x"),
        ("credential", "put", "x", "--target", "--type", "bearer"),
        ("credential", "put", "x", "--target", "--data", "dsn=postgresql://a"),
        ("credential", "put", "x", "--target", "--bucket"),
        ("credential", "put", "x", "--bucket", "--type", "postgres"),
        ("schema", "envelop"),
    ],
)
def test_wrong_usage_is_exit_code_2(noetl: Noetl, arguments: tuple[str, ...]) -> None:
    outcome = noetl(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.err


def test_a_credential_is_kept_listed_and_ended(noetl: Noetl, tmp_path: Path) -> None:
    fields = tmp_path / "db.yaml"
    fields.write_text("host: db\npassword: s3cr3t!\n")
    kept = noetl("credential", "put", "main", "--type", "postgres", "--file", str(fields))
    assert kept.out.strip() == "main version 1 (postgres)"
    listed = noetl("credential", "ls")
    assert "host, password" in listed.out
    assert "s3cr3t!" not in listed.out
    assert noetl("credential", "rm", "main").code == 0
    assert "No credentials" in noetl("credential", "ls").err


def test_a_registered_playbook_is_listed_and_shown(noetl: Noetl, tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(PLAYBOOK)
    assert noetl("register", str(file)).out.strip() == "demo/hello version 1"
    assert "demo/hello" in noetl("catalog", "ls").out
    assert noetl("catalog", "show", "demo/hello").out.strip() == PLAYBOOK.strip()


@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_lint_needs_no_server_and_fails_on_errors(noetl: Noetl, tmp_path: Path, form: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(PLAYBOOK.replace("kind: noop", "kind: nop"))
    outcome = noetl("lint", str(file), "--format", form, "--strict")
    assert outcome.code == 1
    assert "E401" in outcome.out
    file.write_text(PLAYBOOK)
    assert noetl("lint", str(file), "--format", form).code == 0


def test_schemas_are_written_into_a_folder(noetl: Noetl, tmp_path: Path) -> None:
    assert noetl("schema", "--out", str(tmp_path)).code == 0
    assert msgspec.json.decode((tmp_path / "envelope.json").read_bytes())
    assert (tmp_path / "playbook.json").exists()


@pytest.mark.parametrize("place", [(), ("-r", "local")])
def test_a_run_without_a_required_input_is_refused_with_its_name(
    noetl: Noetl, tmp_path: Path, place: tuple[str, ...]
) -> None:
    file = tmp_path / "order.yaml"
    required = "inputs: {customer: {required: true, description: who ordered}}\nworkflow:"
    file.write_text(PLAYBOOK.replace("workflow:", required))
    outcome = noetl("run", str(file), *place)
    assert outcome.code == 2
    assert "requires the input 'customer' (who ordered), which is not given" in outcome.err
    assert "--set customer=VALUE" in outcome.err
    started = noetl(
        "run", str(file), *place, "--set", "customer=Ada", "--json" if place else "--detach"
    )
    assert started.code == 0, started
