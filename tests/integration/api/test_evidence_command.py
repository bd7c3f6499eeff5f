"""`noetl evidence export`: a folder, or a page whose parts can be checked without the page."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support import storage
from tests.support.api import beginning, ending
from tests.support.running_api import Noetl, RunningApi

from noetl_cli.audit import dossier, dossier_collector
from noetl_contracts import codec
from noetl_contracts.credentials import TEXT_PREFIX
from noetl_contracts.events.execution_events import CtxPatched
from noetl_contracts.events.step_events import CallDone, StepEnter, StepExit
from noetl_contracts.ids import CommandId, ExecutionId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult

PLACE = ("--tenant", storage.TENANT, "--organization", storage.ORGANIZATION)
PAGE = "<html><body><!--@parts@--></body></html>"
SEALED = f"{TEXT_PREFIX}{'ab' * 4}:{'x' * 40}"


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without its program, so that no console has to be built."""
    monkeypatch.setattr(dossier, "get_page", lambda _planner: PAGE)


def a_run(running_api: RunningApi, *events: Any, has_ended: bool = True) -> ExecutionId:
    execution_id = storage.an_execution()
    running_api.append(execution_id, [*beginning(), *events, *(ending() if has_ended else [])])
    running_api.call(running_api.world.project, execution_id)
    return execution_id


def read_parts(file: Path) -> dict[str, str]:
    return dict(re.findall(r'id="dossier-(\w+)">(.*?)</script>', file.read_text()))


def test_every_part_has_the_digest_of_the_seal_and_the_chain_its_head(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    execution_id = a_run(running_api)
    file = tmp_path / "run.html"
    done = noetl(
        *("evidence", "export", execution_id, "--html", "--output", str(file), "--json"), *PLACE
    )
    assert done.code == 0, done.err
    parts = read_parts(file)
    seal = codec.decode_json(parts["seal"])
    said = codec.decode_json(done.out)
    assert said["seal"] == codec.digest_hex(parts["seal"].encode())
    assert said["head"] == seal["head"]
    assert {name: codec.digest_hex(parts[name].encode()) for name in dossier.PARTS} == {
        name: part["sha256"] for name, part in seal["parts"].items()
    }
    checksum = ""
    for event in codec.decode_json(parts["events"]):
        checksum = codec.chain_checksum(checksum, event["text"].encode())
        assert checksum == event["checksum"]
    assert seal["head"]["checksum"] == checksum
    assert len(codec.decode_json(parts["moments"])["moments"]) == seal["head"]["version"]


def test_sealed_values_are_masked_as_in_other_evidence(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    execution_id = a_run(running_api, CtxPatched(patch={"token": SEALED}))
    file = tmp_path / "run.html"
    words = ("evidence", "export", execution_id, "--html", "--output", str(file))
    assert noetl(*words, *PLACE).code == 0
    assert TEXT_PREFIX not in file.read_text()
    events = codec.decode_json(read_parts(file)["events"])
    assert [event["concealed"] for event in events].count(True) == 1
    masked = next(event for event in events if event["concealed"])
    assert '"token":"***"' in masked["text"]


def test_a_damaged_history_is_exported_and_ends_with_exit_code_1(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    execution_id = a_run(running_api)
    events = running_api.world.store.history_by_execution[execution_id]
    events[1] = structs.replace(events[1], producer="somebody")
    done = noetl("evidence", "export", execution_id, "--html", "--output", str(tmp_path), *PLACE)
    assert done.code == 1
    assert f"event {events[1].event_id} at version 2 is not what was sealed" in done.out
    assert (tmp_path / f"dossier-{execution_id}.html").is_file()


def test_a_run_that_goes_on_is_refused(noetl: Noetl, running_api: RunningApi) -> None:
    execution_id = a_run(running_api, has_ended=False)
    done = noetl("evidence", "export", execution_id, "--html", *PLACE)
    assert (done.code, "of a run that has ended" in done.err) == (2, True), done
    assert f"noetl replay verify {execution_id}" in done.err


def test_a_run_of_too_many_events_is_refused(
    noetl: Noetl, running_api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dossier_collector, "EVENTS_MAX", 3)
    execution_id = a_run(running_api)
    done = noetl("evidence", "export", execution_id, "--html", *PLACE)
    assert (done.code, "has 4 events; a dossier holds 3" in done.err) == (2, True), done


def test_moments_that_are_not_held_are_said(
    noetl: Noetl, running_api: RunningApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dossier_collector, "MOMENTS_MAX", 2)
    execution_id = a_run(running_api)
    done = noetl("evidence", "export", execution_id, "--html", "--output", str(tmp_path), *PLACE)
    assert "Moments: 2 of 4 versions are held" in done.out
    parts = read_parts(tmp_path / f"dossier-{execution_id}.html")
    assert list(codec.decode_json(parts["moments"])["moments"]) == ["1", "4"]


def test_without_html_it_is_a_folder(noetl: Noetl, running_api: RunningApi, tmp_path: Path) -> None:
    execution_id = a_run(running_api)
    folder = tmp_path / "evidence"
    done = noetl("evidence", "export", execution_id, "--output", str(folder), *PLACE)
    assert (done.code, "agrees with every other" in done.out) == (0, True), done
    bound = noetl("evidence", "export", execution_id, "--payload-bytes", "5", *PLACE)
    assert (bound.code, "a folder has no payloads" in bound.err) == (2, True), bound


def ran(run: str, number: int) -> list[Any]:
    """The events by which a run of the step gives a number."""
    kept = PipelineResult(tasks={"t": TaskResult(kind="python", raw={"n": number})}, last="t")
    result = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(kept))
    return [
        CallDone(step="start", run_id=RunId(run), command_id=CommandId(run), result=result),
        StepExit(step="start", run_id=RunId(run), status=RunStatus.COMPLETED),
    ]


def test_a_step_that_ran_again_keeps_what_was_known_before(
    noetl: Noetl, running_api: RunningApi, tmp_path: Path
) -> None:
    again = StepEnter(step="start", run_id=RunId("12"), activation=2)
    execution_id = a_run(running_api, *ran("11", 1), again, *ran("12", 2))
    done = noetl("evidence", "export", execution_id, "--html", "--output", str(tmp_path), *PLACE)
    assert done.code == 0, done.err
    answers = codec.decode_json(read_parts(tmp_path / f"dossier-{execution_id}.html")["answers"])
    latest = answers[f"/api/executions/{execution_id}/result/start"]["body"]
    assert (latest["run_id"], latest["data"]) == ("12", {"n": 2})
    past = answers[f"/api/result/{execution_id}/past"]["body"]["results"]["start"]
    told = [
        (entry["result"]["run_id"], entry["preview"]["body"]["data"])
        for entry in past
        if entry["result"] is not None
    ]
    # While it runs again it still has the result of before, of no run that is the latest.
    assert told == [("11", {"n": 1}), (None, {"n": 1}), ("12", {"n": 2})]
    versions = [entry["version"] for entry in past]
    assert versions == sorted(set(versions))
