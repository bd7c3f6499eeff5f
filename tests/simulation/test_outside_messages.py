# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Tasks that wait for messages from outside, with every service in one process and the real routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.simulation.test_child_playbooks import begun, ended, running, types
from tests.support.polling import eventually
from tests.support.scripted import Script, says, script

from noetl_cli.local.system import LocalSystem
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import OpenWait
from noetl_contracts.requests import inbox
from noetl_planner.api.app import create_app
from noetl_planner.api.executions import control_requests

PATIENCE_S = 30.0
Api = AsyncTestClient[Litestar]

SIGNAL = """\
workload: {key: go}
workflow:
  - step: hold
    tool: {kind: external, mode: signal, correlation_key: "{{ workload.key }}", schema: {n: integer}}
    set: {ctx.n: "{{ hold.n }}"}
"""
APPROVAL = """\
workflow:
  - step: ask
    tool: {kind: external, mode: approval, title: "Ship {{ execution_id }}?", description: "It is ready.", assignees: [ops]}
    set: {ctx.decision: "{{ ask.decision }}", ctx.by: "{{ ask.by }}", ctx.why: "{{ ask.comment }}", ctx.n: "{{ ask.data.n }}"}
"""


@asynccontextmanager
async def doors(folder: Path, **playbooks: str) -> AsyncIterator[tuple[LocalSystem, Api]]:
    async with (
        running(folder, **playbooks) as opened,
        AsyncTestClient(create_app(opened.services)) as api,
    ):
        yield opened, api


async def open_wait(opened: LocalSystem, execution_id: ExecutionId) -> OpenWait:
    """The wait of an execution, once its projection shows it."""

    async def find() -> OpenWait | None:
        waits = await opened.services.history.projections.list_waits(
            **opened.services.tenant_scope, waits_max=99
        )
        return next((wait for wait in waits if wait.execution_id == execution_id), None)

    found = await eventually(find, timeout_s=PATIENCE_S)
    assert found is not None
    return found


async def matched(opened: LocalSystem) -> None:
    """Do what the reaper does with messages that nobody was told of."""
    for match in await opened.adapters.requests.list_matches(matches_max=99):
        request = inbox.build_delivery_request(
            match.letter, match.wait, routes=IngestRoutes(shard_count=1), producer="test"
        )
        await opened.adapters.requests.deliver_message(
            match.letter.letter_id, open_wait=inbox.build_wait_name(match.wait), request=request
        )


async def test_the_first_signal_counts_and_only_its_repetition_is_accepted(tmp_path: Path) -> None:
    async with doors(tmp_path, signal=SIGNAL) as (opened, api):
        execution_id = await begun(opened, "signal")
        await open_wait(opened, execution_id)
        wrong = await api.post("/api/signals/go", json={"n": "three"})
        assert (wrong.status_code, "'n'" in wrong.json()["detail"]) == (422, True)
        assert (await api.post("/api/signals/go", json={"n": 3})).status_code == 202
        assert (await api.post("/api/signals/go", json={"n": 3})).status_code == 200
        state = await ended(opened, execution_id)
        assert state.ctx == {"n": 3}, state.failure
        assert (await api.post("/api/signals/go", json={"n": 3})).status_code == 200
        seen = await types(opened, execution_id)
        assert seen.count("command.resumed") == 1


async def test_a_signal_that_comes_before_the_wait_is_kept_for_it(tmp_path: Path) -> None:
    async with doors(tmp_path, signal=SIGNAL) as (opened, api):
        assert (await api.post("/api/signals/a/b:c", json={"n": 8})).status_code == 202
        assert (await api.post("/api/signals/a/b:c", json={"n": 9})).status_code == 409
        execution_id = await begun(opened, "signal", key="a/b:c")
        await open_wait(opened, execution_id)
        await matched(opened)
        await matched(opened)
        assert (await ended(opened, execution_id)).ctx == {"n": 8}


async def test_an_early_signal_of_the_wrong_shape_fails_the_task(tmp_path: Path) -> None:
    async with doors(tmp_path, signal=SIGNAL) as (opened, api):
        await api.post("/api/signals/go", json={"m": 8})
        execution_id = await begun(opened, "signal")
        await open_wait(opened, execution_id)
        await matched(opened)
        failure = (await ended(opened, execution_id)).failure
        assert failure is not None
        assert failure.kind == "schema"


async def test_a_key_may_be_waited_for_again_and_takes_the_next_signal(tmp_path: Path) -> None:
    twice = """\
workflow:
  - step: hold
    loop: {in: [1, 2], iterator: i, spec: {mode: sequential}}
    tool: {kind: external, mode: signal, correlation_key: tick}
    set: {ctx.seen: "{{ hold.results | map(attribute='n') | list }}"}
"""
    async with doors(tmp_path, twice=twice) as (opened, api):
        execution_id = await begun(opened, "twice")
        first = await open_wait(opened, execution_id)
        await api.post("/api/signals/tick", json={"n": 1})

        async def is_another() -> bool:
            return (await open_wait(opened, execution_id)).command_id != first.command_id

        await eventually(is_another, timeout_s=PATIENCE_S)
        await api.post("/api/signals/tick", json={"n": 1})
        assert (await ended(opened, execution_id)).ctx == {"seen": [1, 1]}


async def test_a_person_decides_once_among_the_options(tmp_path: Path) -> None:
    async with doors(tmp_path, approval=APPROVAL) as (opened, api):
        execution_id = await begun(opened, "approval")
        await open_wait(opened, execution_id)
        (asked,) = (await api.get("/api/approvals")).json()["approvals"]
        assert asked["title"] == f"Ship {execution_id}?"
        assert (asked["description"], asked["assignees"]) == ("It is ready.", ["ops"])
        assert asked["options"] == ["approve", "reject"]
        address = f"/api/approvals/{asked['approval_id']}"
        refused = await api.post(address, json={"decision": "aprove"})
        assert (refused.status_code, "approve" in refused.json()["hint"]) == (422, True)
        said = {"decision": "reject", "by": "ann", "comment": "no", "data": {"n": 2}}
        assert (await api.post(address, json=said)).status_code == 202
        assert (await api.post(address, json=said)).status_code == 200
        assert (await api.post(address, json={**said, "decision": "approve"})).status_code == 409
        state = await ended(opened, execution_id)
        assert state.ctx == {"decision": "reject", "by": "ann", "why": "no", "n": 2}
        assert (await api.get("/api/approvals")).json()["approvals"] == []
        assert (await api.post("/api/approvals/77", json=said)).status_code == 404


SUBMITS = """\
workload: {renderer: ""}
workflow:
  - step: render
    tool:
      kind: external
      submit: {kind: http, method: POST, endpoint: "{{ workload.renderer }}", json: {notify: "{{ callback.url }}", key: "{{ correlation.key }}"}}
      cancel: {kind: http, method: POST, url: "{{ workload.renderer }}", json: {stop: "{{ submitted.body.job }}", by: "{{ callback.token }}"}}
      timeout: 1h
    set: {ctx.frames: "{{ render.frames }}", ctx.job: "{{ render.submitted.body.job }}"}
    next: {arcs: [{step: late, when: "{{ event.name == 'call.error' }}", set: {ctx.kind: "{{ output.error.kind }}", ctx.message: "{{ output.error.message }}"}}]}
  - {step: late, tool: {kind: noop}}
"""


@pytest.fixture
async def renderer() -> AsyncIterator[Script]:
    async with script() as found:
        found.answers(*[says({"job": 7})] * 9)
        yield found


def asked(renderer: Script) -> list[Any]:
    return [codec.decode_json(item.body) for item in renderer.seen]


async def test_submitted_work_answers_by_its_token_which_is_kept_nowhere(
    tmp_path: Path, renderer: Script
) -> None:
    async with doors(tmp_path, submits=SUBMITS) as (opened, api):
        execution_id = await begun(opened, "submits", renderer=renderer.url)
        await open_wait(opened, execution_id)
        (sent,) = asked(renderer)
        token = sent["notify"].rpartition("/")[2]
        assert sent["key"].startswith(f"{execution_id}:")
        assert (await api.post("/api/callbacks/" + "0" * 63, json={})).status_code == 404
        address = f"/api/callbacks/{token}"
        assert (await api.post(address, json={"frames": 240})).status_code == 202
        state = await ended(opened, execution_id)
        assert state.ctx == {"frames": 240, "job": 7}, state.failure
        assert (await api.post(address, json={"frames": 240})).status_code == 200
        assert (await api.post(address, json={"frames": 241})).status_code == 409
        history = await opened.adapters.ledger.read_events(execution_id, events_max=500)
        assert token not in codec.encode_text(history)
        shown = await opened.adapters.projections.list_rows("command", execution_id)
        assert token not in codec.encode_text(shown)


async def test_a_reported_error_fails_the_task(tmp_path: Path, renderer: Script) -> None:
    async with doors(tmp_path, submits=SUBMITS) as (opened, api):
        execution_id = await begun(opened, "submits", renderer=renderer.url)
        await open_wait(opened, execution_id)
        token = asked(renderer)[0]["notify"].rpartition("/")[2]
        body = {"status": "error", "error": {"message": "out of disk", "code": "DISK"}}
        await api.post(f"/api/callbacks/{token}", json=body)
        assert (await ended(opened, execution_id)).ctx == {
            "kind": "external",
            "message": "out of disk",
        }


async def test_a_wait_that_times_out_calls_off_what_was_submitted(
    tmp_path: Path, renderer: Script
) -> None:
    async with doors(tmp_path, submits=SUBMITS.replace("1h", "0.3")) as (opened, _):
        state = await ended(opened, await begun(opened, "submits", renderer=renderer.url))
        assert state.ctx["kind"] == "timeout"
        sent, stopped = asked(renderer)
        assert stopped == {"stop": 7, "by": sent["notify"].rpartition("/")[2]}


async def test_a_timeout_may_be_a_result(tmp_path: Path) -> None:
    calm = """\
workflow:
  - step: hold
    tool: {kind: external, mode: signal, timeout: 0.2, on_timeout: continue}
    set: {ctx.status: "{{ hold.status }}"}
"""
    async with doors(tmp_path, calm=calm) as (opened, _):
        assert (await ended(opened, await begun(opened, "calm"))).ctx == {"status": "timeout"}


async def test_cancelling_calls_off_what_was_submitted(tmp_path: Path, renderer: Script) -> None:
    async with doors(tmp_path, submits=SUBMITS) as (opened, _):
        execution_id = await begun(opened, "submits", renderer=renderer.url)
        await open_wait(opened, execution_id)
        await control_requests.request_cancel(opened.services, execution_id, "enough")
        assert (await ended(opened, execution_id)).status == "CANCELLED"
        assert [item.get("stop") for item in asked(renderer)] == [None, 7]
