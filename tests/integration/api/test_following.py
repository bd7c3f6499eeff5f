"""Running and watching through a real connection."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.api import PLAYBOOK, beginning, ending
from tests.support.asking import http
from tests.support.running_api import Noetl, RunningApi
from tests.support.storage import an_execution

from noetl_cli.planner import execution_stream
from noetl_cli.terminal import watch
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.execution_events import ExecutionCancelled, PlaybookFailed
from noetl_contracts.events.frame_events import FrameCommitted, FrameFailed
from noetl_contracts.events.loop_events import LoopDone, LoopStarted, LoopStats
from noetl_contracts.ids import CommandId, ExecutionId, FrameId, RunId, StageId, WorkerId
from noetl_contracts.payloads import ResultEnvelope

STAGE, WORKER = StageId("21"), WorkerId("w")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hello.yaml"
    path.write_text(PLAYBOOK)
    return path


def loop_events(*, failed: int = 0) -> list[object]:
    frame = {"stage_id": STAGE, "step": "fetch", "slot": 0, "attempt": 1, "row_count": 10}
    events: list[object] = [
        LoopStarted(
            step="fetch", run_id=RunId("12"), mode="cursor", max_in_flight=2, stage_id=STAGE
        ),
        FrameCommitted(
            frame_id=FrameId("31"), frame_index=0, worker_id=WORKER, metrics={"retries": 3}, **frame
        ),
    ]
    if failed:
        error = ErrorObject(kind="server_error", message="HTTP 500\x1b[2J")
        events.append(
            FrameFailed(
                frame_id=FrameId("32"), frame_index=1, rows_failed=failed, error=error, **frame
            )
        )
    done = LoopDone(
        step="fetch",
        run_id=RunId("12"),
        stats=LoopStats(),
        result=ResultEnvelope(status="ok"),
        stage_id=STAGE,
    )
    return [*events, done]


def play(running_api: RunningApi, events: list[object]) -> threading.Thread:
    """Answer the next accepted execution with a history."""

    def main() -> None:
        requests = running_api.world.store.request_by_id
        while not requests:
            threading.Event().wait(0.01)
        execution_id = next(iter(requests.values())).request.execution_id
        for event in events:
            running_api.append(execution_id, [event])

    thread = threading.Thread(target=main)
    thread.start()
    return thread


def test_a_file_is_run_as_a_draft_and_watched_to_its_end(
    running_api: RunningApi, noetl: Noetl, file: Path
) -> None:
    thread = play(running_api, [*beginning(), *loop_events(), *ending()])
    outcome = noetl("run", str(file), "--output", "none")
    thread.join()
    assert outcome.code == 0, outcome
    assert "start: started" in outcome.out
    assert "fetch: 10 rows, 3 retries in" in outcome.out
    assert "COMPLETED in" in outcome.out
    assert "demo/hello draft 1" in outcome.err


def test_json_is_every_event_on_a_line(running_api: RunningApi, noetl: Noetl, file: Path) -> None:
    thread = play(running_api, [*beginning(), *ending()])
    outcome = noetl("run", str(file), "--json")
    thread.join()
    events = [msgspec.json.decode(line) for line in outcome.out.splitlines()]
    assert [event["version"] for event in events] == [1, 2, 3, 4]
    assert len({event["execution_id"] for event in events}) == 1


def test_a_stream_of_some_types_shows_these_and_the_end(running_api: RunningApi) -> None:
    execution = an_execution()
    running_api.append(execution, [*beginning(), *loop_events(), *ending()])
    url = f"{running_api.url}/api/executions/{execution}/stream"
    wanted = {"event_type": ["frame.committed", "playbook.completed"]}
    lines = http.get(url, params=wanted).text.splitlines()
    shown = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert shown == ["frame.committed", "playbook.completed", "end"]


def test_a_type_that_no_event_has_is_refused(running_api: RunningApi) -> None:
    answer = http.get(
        f"{running_api.url}/api/executions/1/stream", params={"event_type": "frame.won"}
    )
    assert answer.status_code == 400
    assert "frame.won" in answer.json()["detail"]


def test_failed_rows_of_a_completed_run_are_exit_code_4_and_harmless_text(
    running_api: RunningApi, noetl: Noetl, file: Path
) -> None:
    thread = play(running_api, [*beginning(), *loop_events(failed=2), *ending()])
    outcome = noetl("run", str(file), "--output", "none")
    thread.join()
    assert outcome.code == 4
    assert "frame 32: 2 of 10 rows failed: server_error: HTTP 500\\x1b[2J" in outcome.out
    assert "\x1b" not in outcome.out


def test_a_failed_run_names_its_error_and_exits_1(
    running_api: RunningApi, noetl: Noetl, file: Path
) -> None:
    error = ErrorObject(kind="template", message="'nme' is undefined", step="start")
    thread = play(running_api, [*beginning(), PlaybookFailed(error=error, step="start")])
    outcome = noetl("run", str(file))
    thread.join()
    assert outcome.code == 1
    assert "error in step start: template: 'nme' is undefined" in outcome.err


def test_a_cancelled_run_exits_3(running_api: RunningApi, noetl: Noetl, file: Path) -> None:
    thread = play(running_api, [*beginning(), ExecutionCancelled(reason="enough")])
    outcome = noetl("run", str(file))
    thread.join()
    assert outcome.code == 3


def test_time_that_is_up_exits_124_and_says_how_to_go_on(noetl: Noetl, file: Path) -> None:
    outcome = noetl("run", str(file), "--timeout", "0.2")
    assert outcome.code == 124
    assert "noetl run --attach" in outcome.err


def test_a_detached_run_prints_its_execution(
    running_api: RunningApi, noetl: Noetl, file: Path
) -> None:
    outcome = noetl("run", str(file), "--detach", "--set", "who=moon", "--set", "deep.n=3")
    assert outcome.code == 0
    (request,) = running_api.world.store.request_by_id.values()
    assert outcome.out.strip() == request.request.execution_id
    fact = msgspec.json.decode(request.request.data)["facts"][0]
    assert fact["workload"] == {"who": "moon", "deep": {"n": 3}}
    again = noetl("status", outcome.out.strip())
    assert "PENDING" in again.out


def test_attaching_to_what_has_ended_shows_it_all(running_api: RunningApi, noetl: Noetl) -> None:
    execution_id = an_execution()
    running_api.append(execution_id, [*beginning(), *ending()])
    running_api.call(running_api.world.project, execution_id)
    outcome = noetl("run", "--attach", execution_id)
    assert outcome.code == 0
    assert "start: done" in outcome.out


def test_a_stream_after_the_end_is_over_at_once(running_api: RunningApi) -> None:
    execution_id = an_execution()
    running_api.append(execution_id, [*beginning(), *ending()])
    running_api.call(running_api.world.project, execution_id)
    answer = http.get(f"{running_api.url}/api/executions/{execution_id}/stream?after=4", timeout=60)
    assert "event: end" in answer.text


def test_a_planner_that_restarts_is_found_again(running_api: RunningApi, noetl: Noetl) -> None:
    execution_id = an_execution()
    running_api.append(execution_id, beginning())
    port = running_api.port

    def restart(running_api: RunningApi) -> None:
        running_api.stop()
        running_api.start(port)
        running_api.append(execution_id, ending())

    thread = threading.Timer(0.5, restart, args=(running_api,))
    thread.start()
    outcome = noetl("run", "--attach", execution_id)
    thread.join()
    assert outcome.code == 0
    assert "lost the planner" in outcome.err
    assert outcome.out.count("start: started") == 1


def test_a_planner_that_stays_away_is_told_after_a_while(
    running_api: RunningApi, noetl: Noetl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_stream, "PATIENCE_S", 0.5)
    execution_id = an_execution()
    running_api.append(execution_id, beginning())
    thread = threading.Timer(0.3, running_api.stop)
    thread.start()
    outcome = noetl("run", "--attach", execution_id)
    thread.join()
    assert outcome.code == 1
    assert "goes on when the planner does" in outcome.err


def interrupted(times: int) -> Iterator[None]:
    for _ in range(times):
        raise KeyboardInterrupt
    yield None


@pytest.mark.parametrize(("presses", "code", "cancels"), [(1, 0, 0), (2, 3, 1)])
def test_ctrl_c_once_detaches_and_twice_cancels(
    monkeypatch: pytest.MonkeyPatch, presses: int, code: int, cancels: int
) -> None:
    cancelled: list[bool] = []
    rests = iter([None] if presses == 1 else [KeyboardInterrupt])

    def rest(_: float) -> None:
        error = next(rests)
        if error is not None:
            raise error

    monkeypatch.setattr(watch.time, "sleep", rest)
    sources = iter([interrupted(1), iter([])])
    outcome = watch.watch_execution(
        watch.WatchRequest(
            execution_id=ExecutionId("1"),
            events=lambda _tell: next(sources),
            cancel=lambda: cancelled.append(True),
            attach="noetl run --attach 1",
        )
    )
    assert outcome == code
    assert len(cancelled) == cancels


def test_commands_are_named_in_lists(running_api: RunningApi, noetl: Noetl) -> None:
    execution_id = an_execution()
    running_api.append(execution_id, [*beginning(), *ending()])
    running_api.call(running_api.world.project, execution_id)
    assert execution_id in noetl("ls").out
    assert execution_id not in noetl("ls", "--status", "failed").out
    events = noetl("events", execution_id, "--since", "2")
    assert len(events.out.splitlines()) == 2
    assert "playbook.completed" in events.out
    traced = noetl("trace", execution_id, "start")
    assert traced.out.splitlines()[1].split()[0] == "start"
    assert noetl("trace", execution_id, "start", "--json").out.startswith('{"execution_id"')
    assert noetl("trace", execution_id, "other").code == 2
    assert noetl("cancel", execution_id).out.strip().endswith("has already ended: COMPLETED.")
    assert CommandId("1") not in noetl("status", execution_id, "--json").err
