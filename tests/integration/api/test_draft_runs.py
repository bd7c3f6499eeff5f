"""`noetl run FILE` runs a draft: what schedules, webhooks and parents run stays as it is."""

from pathlib import Path

import msgspec
from tests.support.api import PLAYBOOK, beginning, ending
from tests.support.asking import http
from tests.support.running_api import Noetl, RunningApi

from noetl_contracts.requests.facts import ExecutionRequested, FactBatch

CHANGED = PLAYBOOK.replace("demo/hello", "demo/hello") + "    desc: changed\n"


def requests(running_api: RunningApi) -> list[ExecutionRequested]:
    found = []
    for kept in running_api.world.store.request_by_id.values():
        batch = msgspec.json.decode(kept.request.data, type=FactBatch)
        found += [fact for fact in batch.facts if isinstance(fact, ExecutionRequested)]
    return found


def files(tmp_path: Path) -> tuple[str, str]:
    registered, changed = tmp_path / "hello.yaml", tmp_path / "changed.yaml"
    registered.write_text(PLAYBOOK)
    changed.write_text(CHANGED)
    return str(registered), str(changed)


def test_a_file_runs_as_a_draft_and_a_schedule_runs_what_is_registered(
    running_api: RunningApi, noetl: Noetl, tmp_path: Path
) -> None:
    registered, changed = files(tmp_path)
    assert noetl("register", registered).out == "demo/hello version 1\n"
    assert noetl("schedule", "put", "daily", "demo/hello", "--cron", "0 6 * * *").code == 0
    assert noetl("run", changed, "--detach").code == 0
    assert noetl("schedule", "run", "daily").code == 0
    assert noetl("run", "demo/hello", "--detach").code == 0
    assert [fact.version for fact in requests(running_api)] == [-1, 1, 1]
    shown = http.get(f"{running_api.url}/api/catalog/demo/hello").json()
    assert (shown["version"], shown["versions"], shown["source"]) == (1, [1], PLAYBOOK)
    draft = http.get(f"{running_api.url}/api/catalog/demo/hello", params={"version": -1}).json()
    assert (draft["version"], draft["versions"], draft["source"]) == (-1, [1], CHANGED)
    listed = http.get(f"{running_api.url}/api/catalog").json()["playbooks"]
    assert [(item["path"], item["version"]) for item in listed] == [("demo/hello", 1)]


def test_a_draft_alone_is_no_playbook_that_a_schedule_or_a_run_by_path_finds(
    noetl: Noetl, tmp_path: Path
) -> None:
    _, changed = files(tmp_path)
    assert noetl("run", changed, "--detach").code == 0
    by_path = noetl("run", "demo/hello", "--detach")
    assert (by_path.code, "no playbook is registered" in by_path.err) == (2, True)
    assert noetl("schedule", "put", "daily", "demo/hello", "--cron", "0 6 * * *").code == 2


def test_register_asks_for_both(running_api: RunningApi, noetl: Noetl, tmp_path: Path) -> None:
    registered, changed = files(tmp_path)
    noetl("register", registered)
    assert noetl("run", changed, "--register", "--detach").code == 0
    assert [fact.version for fact in requests(running_api)] == [2]
    refused = noetl("run", "demo/hello", "--register")
    assert (refused.code, "--register needs a file" in refused.err) == (2, True)


def test_playbooks_that_are_called_have_to_be_registered(noetl: Noetl, tmp_path: Path) -> None:
    registered, _ = files(tmp_path)
    called = tmp_path / "called.yaml"
    called.write_text(PLAYBOOK.replace("demo/hello", "demo/called"))
    refused = noetl("run", registered, "--with", str(called), "--detach")
    assert (refused.code, "add --register" in refused.err) == (2, True)
    both = tmp_path / "both.yaml"
    both.write_text(PLAYBOOK + "---\n" + called.read_text())
    assert noetl("run", str(both), "--detach").code == 2
    assert noetl("run", registered, "--with", str(called), "--register", "--detach").code == 0
    assert "demo/called" in noetl("catalog", "ls").out


def test_a_draft_says_that_it_is_one(running_api: RunningApi, noetl: Noetl, tmp_path: Path) -> None:
    registered, changed = files(tmp_path)
    noetl("register", registered)
    execution_id = noetl("run", changed, "--detach").out.strip()
    running_api.append(execution_id, [*beginning(), *ending()])
    accepted = http.post(f"{running_api.url}/api/execute", json={"content": CHANGED}).json()
    assert (accepted["path"], accepted["version"]) == ("demo/hello", -1)
    watched = noetl("run", changed, "--timeout", "0.2")
    assert "of demo/hello draft 1" in watched.err


def test_what_is_asked_twice_or_not_at_all_is_refused(running_api: RunningApi) -> None:
    def answer(**body: object) -> tuple[int, str]:
        found = http.post(f"{running_api.url}/api/execute", json=body)
        return found.status_code, found.text

    assert answer(workload={})[0] in (400, 422)
    assert answer(content=PLAYBOOK, version=1)[0] in (400, 422)
    assert answer(content=PLAYBOOK, path="demo/other")[0] in (400, 422)
    assert answer(content=PLAYBOOK + "---\n" + PLAYBOOK.replace("hello", "other"))[0] in (400, 422)
    status, text = answer(content=PLAYBOOK.replace("workflow", "workflw"))
    assert status == 422
    assert "E103" in text


def test_the_same_key_answers_with_the_same_draft(running_api: RunningApi) -> None:
    def ask(content: str) -> dict[str, object]:
        found = http.post(
            f"{running_api.url}/api/execute",
            json={"content": content},
            headers={"Idempotency-Key": "k"},
        )
        return {"status": found.status_code, **found.json()}

    first = ask(PLAYBOOK)
    http.post(f"{running_api.url}/api/execute", json={"content": CHANGED})
    again = ask(PLAYBOOK)
    assert (again["execution_id"], again["deduplicated"]) == (first["execution_id"], True)
    assert ask(CHANGED)["status"] == 409
