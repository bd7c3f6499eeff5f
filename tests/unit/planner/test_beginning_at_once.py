"""A planner has the executions of its shards begin in the transaction that keeps their requests."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import informers
from tests.support.api import replace_services
from tests.support.one_shard import ORGANIZATION, TENANT, World, assert_sound

from noetl_chassis import failpoints
from noetl_contracts import codec
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import CatalogId, ExecutionId
from noetl_contracts.ledger.records import Append, AppendResult, Request
from noetl_contracts.requests import facts
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import end_wait, start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.lookup import execution_lookup, views
from noetl_planner.shards.local_starts import LocalStarts
from noetl_playbook.source.problems import Level
from noetl_storage.ports.errors import ShardLost, StorageUnavailable

PLAYBOOKS = {
    "plain": "  - {step: s, tool: {kind: noop}}\n",
    "empty": "  - {step: s, loop: {in: [], iterator: x, mode: parallel}, tool: {kind: noop}}\n",
    "hasty": "  - {step: s, tool: {kind: noop}, spec: {timeout: 0.001}}\n",
}
BEGUN = ["playbook.initialized", "step.enter", "command.issued"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path, PLAYBOOKS)
    yield opened
    opened.close()


def ask(world: World, path: str, key: str | None = None, **said: Any) -> views.Accepted:
    return world.run(
        start_requests.execute_playbook(world.services, ExecuteBody(path=path, **said), key)
    )


def types(world: World, execution_id: str) -> list[str]:
    return [get_event_type(item.event) for item in world.history(ExecutionId(execution_id))]


def unsettled(world: World) -> int:
    """How many messages wait for the planner."""
    return sum(world.run(world._consumer.count_pending()))


def appended(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Append]:
    appends: list[Append] = []
    append = world.adapters.ledger.append

    async def noted(batch: Append) -> AppendResult:
        appends.append(batch)
        return await append(batch)

    monkeypatch.setattr(world.adapters.ledger, "append", noted)
    return appends


def test_an_execution_begins_before_its_caller_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = appended(world, monkeypatch)
    accepted = ask(world, "plain", key="k")
    assert types(world, accepted.execution_id) == BEGUN
    assert unsettled(world) == 0
    (batch,) = batches
    kept = world.run(
        world.adapters.requests.find_request(
            execution_lookup.build_request_id(accepted.execution_id)
        )
    )
    assert kept == batch.begun
    assert kept is not None
    assert kept.idempotency_key == "k"

    # It goes on like any other.
    (live,) = world.state(accepted.execution_id).commands.values()
    done = facts.CommandCompleted(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        result=informers.RESULT,
    )
    world.send(codec.encode_json(world.batch(accepted.execution_id, done)))
    world.settle()
    assert types(world, accepted.execution_id)[-1] == "playbook.completed"
    assert_sound(world, accepted.execution_id)


def test_one_key_begins_one_execution(world: World) -> None:
    first = ask(world, "plain", key="k")
    again = ask(world, "plain", key="k")
    assert (again.execution_id, again.deduplicated) == (first.execution_id, True)
    with pytest.raises(ApiError, match="already began"):
        ask(world, "plain", key="k", workload={"other": 1})
    world.settle()
    assert types(world, first.execution_id) == BEGUN


def test_what_has_nothing_to_do_ends_as_it_begins(world: World) -> None:
    accepted = ask(world, "empty")
    assert types(world, accepted.execution_id)[-1] == "playbook.completed"
    ended = world.run(
        end_wait.wait_for_end(world.services, accepted, within_s=5, client="127.0.0.1")
    )
    assert ended is not None
    assert ended.status == "COMPLETED"


def test_what_a_turn_has_to_look_at_soon_is_sent_to_it(world: World) -> None:
    accepted = ask(world, "hasty")
    assert types(world, accepted.execution_id) == []
    assert unsettled(world) == 1
    world.settle()
    assert types(world, accepted.execution_id)[:2] == BEGUN[:2]


def test_large_inputs_are_read_by_a_turn(world: World) -> None:
    accepted = ask(world, "plain", workload={"text": "x" * start_requests.INLINE_BYTES_MAX})
    assert types(world, accepted.execution_id) == []
    world.settle()
    assert types(world, accepted.execution_id) == BEGUN


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
def test_without_an_answer_of_the_ledger_it_begins_once(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_written: bool, is_known: bool
) -> None:
    if is_known:
        # What was looked up before is believed to be the latest, and is looked up again.
        ask(world, "plain")
    histories = world.begun()
    append = world.adapters.ledger.append

    async def cut(batch: Append) -> AppendResult:
        if batch.begun is None:
            return await append(batch)
        if is_written:
            await append(batch)
        raise StorageUnavailable("the line is dead")

    monkeypatch.setattr(world.adapters.ledger, "append", cut)
    accepted = ask(world, "plain")
    assert types(world, accepted.execution_id) == (BEGUN if is_written else [])
    assert unsettled(world) == 1
    world.settle()
    assert types(world, accepted.execution_id) == BEGUN
    assert world.begun() == histories + 1


def test_a_failure_after_the_commit_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(point: failpoints.Failpoint) -> None:
        if point is failpoints.Failpoint.PLANNER_APPEND_AFTER:
            raise failpoints.FailpointError(point)

    with monkeypatch.context() as patched:
        patched.setattr("noetl_planner.service.pass_failpoint", fails)
        accepted = ask(world, "plain")
    assert types(world, accepted.execution_id) == BEGUN
    world.settle()
    assert types(world, accepted.execution_id) == BEGUN


def test_the_latest_version_runs_wherever_it_was_registered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = appended(world, monkeypatch)
    assert ask(world, "plain").version == 1
    # Another API registers it: this one still knows the first version.
    elsewhere = replace_services(
        world.services, playbook_cache=type(world.services.playbooks.playbook_cache)()
    )
    source = world.run(
        world.adapters.catalog.find_playbook(
            "plain", tenant_id=TENANT, organization_id=ORGANIZATION
        )
    )
    assert source is not None
    later = source.source.replace("step: s,", "step: later,")
    world.run(playbooks.register_text(elsewhere, later, level=Level.TOLERANT))

    for _ in range(2):
        accepted = ask(world, "plain")
        assert accepted.version == 2
        assert world.state(accepted.execution_id).catalog_version == 2
    assert ask(world, "plain", version=1).version == 1
    # The second was looked up before it began; the third is what was known, and held to be that.
    assert [one.latest is not None for one in batches] == [False, True, False, True, False]


def test_a_shard_that_is_gone_or_busy_leaves_it_to_the_next(world: World) -> None:
    async def busy() -> list[bool]:
        harness, held = LocalStarts(), asyncio.Event()

        class Slow:
            async def start_execution(self, request: Request, *, latest: CatalogId | None) -> bool:
                await held.wait()
                return True

        slow, other, request = Slow(), Slow(), _a_request()
        harness.register_starter(0, slow)
        first = asyncio.ensure_future(harness.start_execution(0, request))
        await asyncio.sleep(0)
        found = [
            await harness.start_execution(0, request),
            await harness.start_execution(1, request),
        ]
        held.set()
        found += [await first, await harness.start_execution(0, request)]
        harness.register_starter(0, other)
        harness.remove_starter(0, slow)
        found.append(await harness.start_execution(0, request))
        harness.remove_starter(0, other)
        return [*found, await harness.start_execution(0, request)]

    assert world.run(busy()) == [False, False, True, True, True, False]


def test_a_planner_that_left_its_shard_takes_nothing(world: World) -> None:
    world.run(world.planner.close())
    accepted = ask(world, "plain")
    assert types(world, accepted.execution_id) == []
    assert unsettled(world) == 1


def test_a_shard_that_was_lost_unnoticed_takes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(batch: Append) -> AppendResult:
        raise ShardLost("held by another")

    monkeypatch.setattr(world.adapters.ledger, "append", lost)
    accepted = ask(world, "plain")
    assert types(world, accepted.execution_id) == []
    assert unsettled(world) == 1


def _a_request() -> Request:
    return Request(
        request_id="r",
        execution_id=ExecutionId("1"),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        kind="execute",
        subject="s",
        data=b"",
    )
