"""`noetl run -r local`: the same services in one process, without any server."""

import threading
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.support.asking import http
from tests.support.running_api import Noetl
from tests.support.servers import wait_until
from tests.support.services import free_port

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: here, path: demo/here}
workload: {count: 3, who: world}
workflow:
"""
LOOP = (
    HEAD
    + """\
  - step: start
    tool: {kind: python, code: "result = {'items': list(range(context_count))}",
           input: {context_count: "{{ count }}"}}
    next: {arcs: [{step: square}]}
  - step: square
    loop: {in: "{{ start.data['items'] }}", iterator: n, spec: {mode: parallel, max_in_flight: 4}}
    tool: {kind: python, input: {n: "{{ iter.n }}"}, code: "result = n * n"}
    next: {arcs: [{step: finish}]}
  - step: finish
    tool: {kind: noop}
"""
)


@pytest.fixture
def playbook(tmp_path: Path) -> Path:
    return tmp_path / "here.yaml"


def test_a_loop_runs_in_this_process(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(LOOP)
    outcome = noetl("run", str(playbook), "-r", "local", "--set", "count=20")
    assert outcome.code == 0, outcome
    assert "square: 20 items" in outcome.out
    assert "COMPLETED" in outcome.out


def test_its_events_are_those_of_a_server(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(LOOP)
    outcome = noetl("run", str(playbook), "-r", "local", "--json")
    events = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    assert [event["version"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["event_type"] == "playbook.initialized"
    assert events[-1]["event_type"] == "playbook.completed"
    items = [event for event in events if event["event_type"] == "call.done"]
    assert sum(event["context"].get("item_index") is not None for event in items) == 3


def test_what_tasks_write_is_told_as_it_comes(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(
        HEAD
        + "  - step: start\n"
        + "    tool:\n"
        + "      kind: python\n"
        + "      code: |\n"
        + "        print('first')\n"
        + "        logging.warning('second')\n"
        + "        raise ValueError('no more')\n"
    )
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 1
    assert " start #1.1 stdout: first\n" in outcome.err
    assert " start #1.1 warning: second\n" in outcome.err
    assert outcome.err.index("first") < outcome.err.index("second")


def test_a_template_error_fails_the_run_and_names_the_field(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(
        HEAD
        + "  - step: start\n"
        + '    tool: {kind: python, input: {x: "{{ workload.nme }}"}, code: "result = 1"}\n'
    )
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 1
    assert "nme" in outcome.err
    assert "start" in outcome.err


def test_a_missing_credential_is_named(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(
        HEAD + '  - step: start\n    tool: {kind: postgres, auth: nobody, query: "select 1"}\n'
    )
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 1
    assert "nobody" in outcome.err


def test_time_that_is_up_stops_it(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(
        HEAD + '  - step: start\n    tool: {kind: python, code: "import time; time.sleep(30)"}\n'
    )
    outcome = noetl("run", str(playbook), "-r", "local", "--timeout", "0.5")
    assert outcome.code == 124
    assert "it is stopped" in outcome.err


def test_a_registered_path_needs_a_server(noetl: Noetl) -> None:
    assert noetl("run", "demo/here", "-r", "local").code == 2


def test_settings_of_the_services_apply(
    noetl: Noetl, playbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_WORKER_LEASE_S", "soon")
    playbook.write_text(LOOP)
    outcome = noetl("run", str(playbook), "-r", "local")
    assert outcome.code == 2
    assert "NOETL_WORKER_LEASE_S" in outcome.err


def test_playbooks_that_call_each_other_run_in_this_process(
    noetl: Noetl, playbook: Path, tmp_path: Path
) -> None:
    playbook.write_text(
        HEAD
        + """\
  - step: start
    tool: {kind: playbook, path: demo/called, return_step: say, input: {n: "{{ count }}"}}
    set: {ctx.said: "{{ start.said }}"}
"""
    )
    folder = tmp_path / "called"
    folder.mkdir()
    head = HEAD.replace("demo/here", "demo/called")
    say = '  - {step: say, tool: {kind: noop, result: {said: "{{ workload.n + 1 }}"}}}\n'
    (folder / "called.yaml").write_text(head + say)
    outcome = noetl("run", str(playbook), "-r", "local", "--with", str(folder), "--json")
    events = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    (left,) = [event for event in events if event["event_type"] == "step.exit"]
    assert left["context"]["patch"] == {"said": 4}


def test_a_folder_without_a_playbook_is_told_apart(
    noetl: Noetl, playbook: Path, tmp_path: Path
) -> None:
    playbook.write_text(LOOP)
    empty = tmp_path / "empty"
    empty.mkdir()
    outcome = noetl("run", str(playbook), "-r", "local", "--with", str(empty))
    assert outcome.code == 2
    assert "There is no playbook in" in outcome.err


def test_a_local_run_takes_a_decision_at_its_port(noetl: Noetl, playbook: Path) -> None:
    playbook.write_text(
        HEAD
        + """\
  - step: ask
    tool: {kind: external, mode: approval, title: "Go?", timeout: 60}
    set: {ctx.said: "{{ ask.decision }}"}
"""
    )
    port = free_port()
    api = f"http://127.0.0.1:{port}/api/approvals"
    decided: list[int] = []

    def decide() -> None:
        asked: list[dict[str, str]] = []

        def is_asked() -> bool:
            try:
                asked[:] = http.get(api, timeout=5).json()["approvals"]
            except httpx.TransportError:
                return False
            return bool(asked)

        wait_until(is_asked, timeout_s=60, what="the approval is listed")
        body = {"decision": "reject"}
        answer = http.post(f"{api}/{asked[0]['approval_id']}", json=body, timeout=60)
        decided.append(answer.status_code)

    person = threading.Thread(target=decide)
    person.start()
    outcome = noetl("run", str(playbook), "-r", "local", "--listen", str(port), "--json")
    person.join()
    assert decided == [202]
    events = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    (left,) = [event for event in events if event["event_type"] == "step.exit"]
    assert left["context"]["patch"] == {"said": "reject"}


def test_a_script_beside_the_playbook_runs_with_it(noetl: Noetl, playbook: Path) -> None:
    text = "  - {step: start, tool: {kind: python, input: {n: 3}, script: {uri: lib/add.py}}}\n"
    playbook.write_text(HEAD + text)
    missing = noetl("run", str(playbook), "-r", "local")
    assert missing.code == 2
    assert ":6:" in missing.err
    assert "script 'lib/add.py' cannot be read beside the playbook" in missing.err
    (playbook.parent / "lib").mkdir()
    (playbook.parent / "lib/add.py").write_text("result = {'sum': f'{{{n + 1}}}'}\n")
    outcome = noetl("run", str(playbook), "-r", "local", "--output", "json")
    assert outcome.code == 0, outcome
    assert msgspec.json.decode(outcome.out) == {"sum": "{4}"}
