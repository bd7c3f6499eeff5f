"""Who watches a run is sent its moments: looked at, built and encoded once for all who watch."""

import asyncio
from typing import Any

import httpx
import pytest
from tests.support.api import ApiWorld, beginning, ending
from tests.support.identities import OWNER, Caller, make_caller, open_client
from tests.support.identities import OWNER_TOKEN as TOKEN
from tests.support.polling import eventually
from tests.support.storage import an_execution

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, subjects
from noetl_contracts.commands.task_metrics import SparkProgress, StepProgress
from noetl_contracts.errors import Retryable
from noetl_contracts.ids import CommandId, ExecutionId
from noetl_planner.api.app import create_app
from noetl_planner.api.executions import moment_stream, moments
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.pools import lost_work
from noetl_planner.api.pools.lost_work import LostWork
from noetl_planner.identity.authenticator import Authenticator, digest_token

EXECUTION = an_execution()
WATCH = f"/api/executions/{EXECUTION}/moment/stream"


@pytest.fixture(autouse=True)
def _quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moment_stream, "TURN_S", 0.01)
    monkeypatch.setattr(moment_stream, "LOOK_S", 0.02)


@pytest.fixture
async def world() -> ApiWorld:
    opened = ApiWorld()
    await opened.append(EXECUTION, beginning())
    await opened.project(EXECUTION)
    return opened


def guard(world: ApiWorld, **changes: Any) -> ApiServices:
    authenticator = Authenticator(world.identities, SystemClock(), owner_digest=digest_token(TOKEN))
    return world.services(authenticator=authenticator, **changes)


def watch(services: ApiServices, caller: Caller = OWNER) -> "asyncio.Task[httpx.Response]":
    async def ask() -> httpx.Response:
        async with open_client(create_app(services), caller) as client:
            return await client.get(WATCH, timeout=60)

    return asyncio.ensure_future(ask())


async def wait_for_clients(services: ApiServices, count: int) -> None:
    async def are_there() -> bool:
        run = services.history.watched_runs.find_run(EXECUTION)
        return run is not None and run.client_count == count and run.turn > 0

    await eventually(are_there)


async def end_run(world: ApiWorld) -> None:
    await world.append(EXECUTION, ending())
    await world.project(EXECUTION)


def read_messages(answer: httpx.Response) -> list[dict[str, str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.splitlines() for block in answer.text.split("\r\n\r\n") if block]
    messages = [dict(line.split(": ", 1) for line in block) for block in blocks]
    return [message for message in messages if "event" in message]


async def test_a_run_that_is_over_is_shown_once(world: ApiWorld) -> None:
    await end_run(world)
    services = guard(world)
    async with open_client(create_app(services), OWNER) as client:
        shown = (await client.get(f"/api/executions/{EXECUTION}/moment")).json()
        moment, end = read_messages(await client.get(WATCH))
    assert (moment["event"], moment["id"], end["event"], end["id"]) == ("moment", "4", "end", "4")
    assert codec.decode_json(moment["data"].encode()) == shown
    assert services.history.watched_runs.find_run(EXECUTION) is None


async def test_all_who_watch_get_the_same_which_is_built_once(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    build = moments.view_present

    async def count_builds(services: ApiServices, execution_id: ExecutionId) -> Any:
        moment = await build(services, execution_id)
        built.append(moment.version)
        return moment

    monkeypatch.setattr(moments, "view_present", count_builds)
    services = guard(world)
    watching = [watch(services) for _ in range(5)]
    await wait_for_clients(services, 5)
    await end_run(world)
    answers = [read_messages(answer) for answer in await asyncio.gather(*watching)]
    for messages in answers:
        assert [message["event"] for message in messages] == ["moment", "moment", "end"]
        assert messages == answers[0]
    first, last, _ = (codec.decode_json(message["data"].encode()) for message in answers[0])
    assert (first["status"], last["status"]) == ("RUNNING", "COMPLETED")
    assert built == [2, 4]
    assert services.history.watched_runs.find_run(EXECUTION) is None


async def test_what_a_run_waits_for_is_told_though_nothing_happens_in_it(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moment_stream, "WAITS_S", 0.0)
    services = guard(world)
    watching = watch(services)
    await wait_for_clients(services, 1)
    run = services.history.watched_runs.find_run(EXECUTION)
    assert run is not None
    lost = LostWork(
        worker_id="w-1",
        pool="default",
        lane="io",
        steps=["start"],
        commands=1,
        is_held=True,
        since=SystemClock().now(),
        is_served=False,
        reason="no worker serves pool 'default'",
    )

    looks = 0

    async def list_lost(*_: object) -> list[LostWork]:
        nonlocal looks
        looks += 1
        return [lost]

    monkeypatch.setattr(lost_work, "list_lost_work", list_lost)

    async def is_told() -> bool:
        return run.moment is not None and b"no worker serves" in run.moment.full

    await eventually(is_told)
    turn, seen = run.turn, looks

    async def is_looked_at_again() -> bool:
        return looks > seen + 2

    await eventually(is_looked_at_again)
    # What is as it was is not sent again.
    assert run.turn == turn
    await end_run(world)
    shown = [
        codec.decode_json(message["data"].encode())
        for message in read_messages(await watching)
        if message["event"] == "moment"
    ]
    assert [len(moment["lost"]) for moment in shown] == [0, 1, 0]
    assert [moment["version"] for moment in shown] == [2, 2, 4]


async def test_values_are_hidden_from_who_may_not_read_them_while_others_see_them(
    world: ApiWorld,
) -> None:
    services = guard(world)
    viewer = await make_caller(world, "viewer")
    watching = [watch(services), watch(services, viewer)]
    await wait_for_clients(services, 2)
    await end_run(world)
    answers = [read_messages(answer) for answer in await asyncio.gather(*watching)]
    for messages, workload in zip(answers, [{"who": "world"}, None], strict=True):
        shown = [message for message in messages if message["event"] == "moment"]
        assert len(shown) == 2
        for message in shown:
            assert codec.decode_json(message["data"].encode())["workload"] == workload


async def test_one_who_leaves_ends_nothing_for_the_others(world: ApiWorld) -> None:
    services = guard(world)
    leaving, staying = watch(services), watch(services)
    await wait_for_clients(services, 2)
    leaving.cancel()
    await asyncio.wait({leaving})
    await wait_for_clients(services, 1)
    await end_run(world)
    assert read_messages(await staying)[-1]["event"] == "end"


async def test_progress_is_told_to_all(world: ApiWorld) -> None:
    services = guard(world, hints=world.broker)
    watching = [watch(services), watch(services)]
    await wait_for_clients(services, 2)
    progress = StepProgress(
        step="load",
        command_id=CommandId("7"),
        attempt=1,
        spark=SparkProgress(phase="job", seconds=3.5),
    )
    run = services.history.watched_runs.find_run(EXECUTION)
    assert run is not None
    subject = subjects.build_progress_hint(EXECUTION)

    async def is_told() -> bool:
        await world.broker.broadcast(subject, codec.encode_json(progress))
        return bool(run.progress)

    await eventually(is_told)
    await end_run(world)
    for answer in await asyncio.gather(*watching):
        told = [item for item in read_messages(answer) if item["event"] == "progress"]
        assert codec.decode_as(told[0]["data"].encode(), StepProgress) == progress


async def test_where_the_ledger_is_away_the_stream_ends_without_an_end(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = guard(world)
    watching = watch(services)
    await wait_for_clients(services, 1)

    async def fail(_: ExecutionId) -> None:
        raise Retryable("away")

    monkeypatch.setattr(world.ledger, "find_head", fail)
    messages = read_messages(await watching)
    assert [message["event"] for message in messages] == ["moment"]
    assert services.history.watched_runs.find_run(EXECUTION) is None


async def test_a_process_that_ends_tells_no_end(world: ApiWorld) -> None:
    services = guard(world)
    watching = watch(services)
    await wait_for_clients(services, 1)
    world.stop.set()
    assert [item["event"] for item in read_messages(await watching)] == ["moment"]


async def test_what_is_not_there_is_not_watched(world: ApiWorld) -> None:
    async with open_client(create_app(guard(world)), OWNER) as client:
        answer = await client.get("/api/executions/7/moment/stream")
    assert answer.status_code == 404
