"""What people name things cannot leave a line, hide in one, or command a terminal."""

import json
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld

from noetl_chassis import telemetry
from noetl_cli import terminal_output
from noetl_cli.errors import CliError
from noetl_cli.terminal import diagnostics
from noetl_contracts import codec, written_names
from noetl_planner.api.app import create_app
from noetl_playbook.model.playbook import Metadata
from noetl_playbook.parse.playbook import parse_playbook

Api = AsyncTestClient[Litestar]
BAD_NAMES = [
    *("", " ", "a\nb", "a\rb", "a\tb", "a\x1b[2Jb", "a\x00b", "a\x7fb", "a\x9b31mb", "a\x85b"),
    *("a\u202eb", "a\u2066b", "a\u200fb", "a\u061cb", "a\u2028b", "a\u2029b", "a\u200bb"),
    *("\ufeffa", "a\U000e0041b", " a", "a ", "a" * 257),
]
BAD_PATHS = [*BAD_NAMES, "..", ".", "a/../b", "a//b", "a/./b", "../a", "a/..", "x" * 5_000]
GOOD_NAMES = ["a", "orders/load", "Überweisung prüfen", "報告", "a.b-c_d", "x" * 256, "..a", "a..b"]
HIDDEN = "\x1b\x00\x07\x7f\x9b\x85\u202e\u2066\u200f\u061c\u2028\u2029\u200b\ufeff\U000e0041\r"
EVIL = f"a\nerror: forged {HIDDEN} b"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    world = ApiWorld()
    async with AsyncTestClient(create_app(world.services())) as client:
        yield client


def document(**metadata: str) -> str:
    return json.dumps(
        {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "a", **metadata},
            "workflow": [{"step": "s", "tool": {"kind": "noop"}}],
        }
    )


def is_hidden(text: str) -> bool:
    return any(char in text for char in HIDDEN)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_is_no_name_is_refused(path: str) -> None:
    if not path.strip("/ "):
        path = f"a/{path}/b"
    parsed = parse_playbook(document(path=path))
    assert parsed.playbook is None
    assert {problem.code for problem in parsed.problems} & {"E101", "E102"}
    assert not any(is_hidden(problem.message) for problem in parsed.problems)
    assert not any("\n" in problem.message for problem in parsed.problems)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_none_is_refused_wherever_it_is_written(name: str) -> None:
    root = {
        "apiVersion": "noetl.io/v2",
        "kind": "Playbook",
        "metadata": {"name": "a"},
        "workflow": [{"step": "s", "tool": {"kind": "noop"}}],
    }
    tool = {"kind": "noop"}
    for change in (
        {"metadata": {"name": name, "path": "a"}},
        {"workflow": [{"step": name, "tool": tool}]},
        {"workload": {name: 1}},
        {"inputs": {name: {"type": "string"}}},
        {"keychain": [{"name": name, "kind": "static", "map": {"a": "b"}}]},
        {"workbook": [{"name": name, "tool": tool}]},
    ):
        parsed = parse_playbook(json.dumps({**root, **change}))
        assert parsed.playbook is None, change


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_names_in_any_language_are_taken(name: str) -> None:
    parsed = parse_playbook(document(name=name, path=name))
    assert parsed.playbook is not None, parsed.problems
    assert parsed.playbook.metadata.path == name


@pytest.mark.parametrize("path", BAD_PATHS)
def test_what_was_registered_before_is_still_read(path: str) -> None:
    kept = codec.decode_as(codec.encode_json({"name": path, "path": path}), Metadata)
    assert kept.path == path


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name])
async def test_the_api_refuses_such_names(api: Api, name: str) -> None:
    text = {"Content-Type": "text/yaml"}
    assert (await api.post("/api/catalog/register", content=PLAYBOOK, headers=text)).is_success
    answers = [
        await api.post("/api/catalog/register", content=document(path=name + "/x"), headers=text),
        await api.post(
            "/api/execute", json={"path": "demo/hello", "workload": {"who": "x", name: 1}}
        ),
        await api.post(
            "/api/credentials", json={"name": name, "type": "generic", "data": {"a": "b"}}
        ),
    ]
    assert [answer.status_code in {400, 422} for answer in answers] == [True, True, True]
    assert not any(is_hidden(answer.json()["detail"]) for answer in answers[:2])


@pytest.mark.parametrize("kind", ["schedules", "webhooks", "triggers"])
@pytest.mark.parametrize("name", ["a%0Ab", "a%1B%5B2J", "%E2%80%AEa", "%2E%2E", "a" * 300, "a%20b"])
async def test_the_api_refuses_such_names_in_addresses(api: Api, kind: str, name: str) -> None:
    text = {"Content-Type": "text/yaml"}
    assert (await api.post("/api/catalog/register", content=PLAYBOOK, headers=text)).is_success
    more = {"schedules": {"cron": "* * * * *"}, "webhooks": {"unsigned": True}}.get(kind, {})
    answer = await api.put(f"/api/{kind}/{name}", json={"path": "demo/hello", **more})
    assert answer.status_code in {400, 404, 405, 422}
    assert not is_hidden(answer.text)


def test_a_table_a_line_and_a_note_show_what_would_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal_output.print_rows(("NAME", "PATH"), [(EVIL, EVIL)], nothing="none")
    terminal_output.print_line(EVIL)
    terminal_output.print_note(EVIL)
    terminal_output.print_error(CliError(EVIL, way_out=EVIL))
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert len(err.splitlines()) == 3
    assert not is_hidden(out + err)
    assert "\\u202e" in out
    assert "\\x1b" in err


def test_json_on_a_terminal_is_the_same_value_without_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal_output.print_json({EVIL: [EVIL]})
    out = capsys.readouterr().out
    assert json.loads(out) == {EVIL: [EVIL]}
    assert not is_hidden(out)
    assert len(out.splitlines()) == 1


def test_problems_of_a_playbook_stay_on_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = parse_playbook(document(path=EVIL))
    problems = [(f"{EVIL}.yaml", problem) for problem in parsed.problems]
    lines = diagnostics.format_text_lines(problems)
    assert not any(is_hidden(line) or "\n" in line for line in lines)
    diagnostics.show_diagnostics(problems, {})
    shown = capsys.readouterr().out
    assert not is_hidden(shown)
    assert "\nerror: forged" not in shown


@pytest.fixture
def _logs() -> Iterator[None]:
    structlog.reset_defaults()
    handlers, level = logging.getLogger().handlers, logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
    logging.getLogger().setLevel(level)


@pytest.mark.usefixtures("_logs")
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_log_line_is_one_line(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    telemetry.configure_logs(service="s", instance="i", log_format=log_format, log_level="info")
    structlog.get_logger("x").info(EVIL, path=EVIL, names=[EVIL], **{"k\u202e": EVIL})
    logging.getLogger("library").warning("said %s", EVIL)
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 2
    assert not is_hidden(err)


@given(st.text())
def test_an_escaped_line_is_one_visible_line(text: str) -> None:
    line = written_names.escape_line(text)
    assert not is_hidden(line)
    assert len(line.splitlines()) <= 1
    assert written_names.find_name_problem(text) is not None or line == text
    assert json.loads(written_names.escape_json(json.dumps(text, ensure_ascii=False))) == text
