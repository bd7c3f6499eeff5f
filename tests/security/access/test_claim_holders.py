"""A worker's key speaks for its own worker, in claims and in every report."""

from http import HTTPStatus
from typing import Any

import pytest
from tests.support.api import ApiWorld, beginning
from tests.support.identities import OWNER, Caller, make_caller, make_guarded_app, open_client

from noetl_contracts.commands.worker_pools import Pools
from noetl_contracts.ids import ExecutionId
from noetl_planner.domain.decision.draft import Limits

EXECUTION = ExecutionId("72057594037927937")
HELD = {"execution_id": EXECUTION, "attempt": 1}
FAILED = {"error": {"kind": "external", "message": "no"}}
OF_FRAMES = {"command_id": "7"}
CALLS = {
    "/api/commands/claim": {"pool": "edge"},
    "/api/stages/7/frames/claim": {},
    "/api/commands/7/heartbeat": HELD,
    "/api/commands/7/complete": HELD,
    "/api/commands/7/fail": {**HELD, **FAILED},
    "/api/commands/7/release": HELD,
    "/api/frames/7/heartbeat": {**HELD, **OF_FRAMES},
    "/api/frames/7/commit": {**HELD, **OF_FRAMES, "status": "COMMITTED"},
}
OTHERS = ("other", "edges", "edge-1", "other.edge", "edge/1", "Edge")


@pytest.fixture
async def app() -> Any:
    world = ApiWorld()
    await world.append(EXECUTION, beginning("demo/hello"))
    await world.project(EXECUTION)
    app = make_guarded_app(world, limits=Limits(pools=Pools(by_http=("edge",))))
    app.state.worker = await make_caller(world, "worker", name="edge")
    return app


async def call(app: Any, caller: Caller, address: str, worker_id: str) -> Any:
    async with open_client(app, caller) as client:
        return await client.post(address, json={**CALLS[address], "worker_id": worker_id})


@pytest.mark.parametrize("worker_id", OTHERS)
@pytest.mark.parametrize("address", CALLS)
async def test_no_worker_speaks_for_another(app: Any, address: str, worker_id: str) -> None:
    answer = await call(app, app.state.worker, address, worker_id)
    assert answer.status_code == HTTPStatus.FORBIDDEN, answer.text
    assert answer.json()["code"] == "owner_mismatch"


@pytest.mark.parametrize("worker_id", ["edge", "edge.1", "edge.a/b"])
@pytest.mark.parametrize("address", CALLS)
async def test_a_worker_speaks_for_itself(app: Any, address: str, worker_id: str) -> None:
    answer = await call(app, app.state.worker, address, worker_id)
    assert answer.json().get("code") != "owner_mismatch", answer.text
    assert answer.status_code in {HTTPStatus.OK, HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}


@pytest.mark.parametrize("account", ["a.b", "a b", "a/b", "ä"])
async def test_a_worker_has_a_name_that_a_subject_may_hold(app: Any, account: str) -> None:
    async with open_client(app, OWNER) as client:
        answer = await client.post("/api/keys", json={"account": account, "worker": True})
    assert answer.status_code == HTTPStatus.BAD_REQUEST, answer.text
