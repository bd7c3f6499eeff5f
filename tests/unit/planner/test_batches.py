"""Quick items of a parallel loop share commands, and each still ends by itself."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET, structs
from tests.support.planning import PlannerHarness, done

from noetl_contracts.commands.command_work import BatchWork, Command, ItemWork
from noetl_contracts.commands.task_metrics import ELAPSED_MS
from noetl_contracts.commands.waits import TimeWait
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.errors import ErrorObject
from noetl_contracts.ids import WorkerId
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.requests import facts
from noetl_replay.fold_batches import BATCH_US
from noetl_replay.state import ReturnedItem

ITEMS = 100
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workload: {n: 100}
workflow:
  - step: each
    loop:
      in: "{{ workload.n }}"
      iterator: i
      spec: {mode: parallel, max_in_flight: 50, max_attempts: 2MORE}
    POLICYtool: TOOL
"""
REF = PayloadRef(
    uri="noetl://tenant/default/org/default/payloads/sha256/" + "0" * 64,
    sha256="0" * 64,
    media_type="application/json",
    payload_bytes=2,
)
ERROR = ErrorObject(kind="timeout", code="TIMEOUT", message="too late")


def playbook(*, more: str = "", policy: str = "", tool: str = "{kind: noop}") -> str:
    return PLAYBOOK.replace("MORE", more).replace("POLICY", policy).replace("TOOL", tool)


def worker(*, capacity: int = 2, takes_batches: bool = True) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker_id=WorkerId("w"),
        pool="default",
        lanes=("io",),
        running=0,
        capacity=capacity,
        takes_batches=takes_batches,
    )


def begun(text: str | None = None, *, beat: WorkerHeartbeat | None = None) -> PlannerHarness:
    harness = PlannerHarness(text or playbook())
    harness.workers = (beat or worker(),)
    harness.start()
    return harness


def took(command: Command, milliseconds: int) -> facts.CommandCompleted:
    return structs.replace(done(command), metrics={ELAPSED_MS: milliseconds})


def batches(harness: PlannerHarness) -> list[Command]:
    return [command for command in harness.sent() if isinstance(command.work, BatchWork)]


def batched() -> tuple[PlannerHarness, Command]:
    """A loop whose first item was quick, and the batch that came of it."""
    harness = begun()
    harness.tell(took(harness.sent()[0], 1))
    (command,) = batches(harness)
    return harness, command


def ended(command: Command, index: int) -> facts.CommandCompleted:
    return structs.replace(took(command, 1), item_index=index)


def failed(command: Command, index: int | Any = UNSET) -> facts.CommandFailed:
    return facts.CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WorkerId("w"),
        error=ERROR,
        item_index=index,
    )


def lost(command: Command) -> facts.CommandLost:
    return facts.CommandLost(
        command_id=command.command_id, attempt=command.attempt, reason="worker_lost"
    )


def indexes(command: Command) -> list[int]:
    assert isinstance(command.work, BatchWork)
    return command.work.indexes


def loop_of(harness: PlannerHarness) -> Any:
    (run,) = harness.state.runs.values()
    return run.loop


def test_items_go_out_one_by_one_until_it_is_known_how_long_they_take() -> None:
    harness = begun()
    assert [type(command.work) for command in harness.sent()] == [ItemWork] * 4
    assert harness.last is not None
    assert harness.last.wake_at is not None
    # Nobody has told: from now on they are not quick, and whoever adds workers sees them wait.
    harness.now = harness.last.wake_at
    harness.tell(facts.TimerDue())
    assert loop_of(harness).in_flight == 50
    assert not batches(harness)


def test_quick_items_share_a_command_whose_length_follows_from_their_time() -> None:
    _, command = batched()
    assert indexes(command) == list(range(4, 4 + (ITEMS - 1) // 4))
    harness = begun()
    harness.tell(took(harness.sent()[0], BATCH_US // 1000 // 10))
    assert len(indexes(batches(harness)[0])) == 10


def test_slow_items_have_a_command_each_and_all_that_is_allowed_goes_out() -> None:
    harness = begun()
    harness.tell(took(harness.sent()[0], 5_000))
    assert not batches(harness)
    assert loop_of(harness).in_flight == 50


@pytest.mark.parametrize(
    "text",
    [
        playbook().replace("max_attempts: 2", "max_attempts: 1"),
        playbook().replace("mode: parallel", "mode: sequential"),
        playbook(tool="{kind: playbook, path: other}"),
        playbook(policy="spec: {policy: {failure: {mode: fail_fast}}}\n    "),
    ],
)
def test_what_may_not_share_a_command_does_not(text: str) -> None:
    harness = begun(text)
    harness.tell(took(harness.sent()[0], 1))
    assert not batches(harness)
    assert loop_of(harness).may_batch is UNSET


@pytest.mark.parametrize("beats", [(), (worker(), worker(takes_batches=False))])
def test_without_workers_that_can_read_batches_there_are_none(
    beats: Sequence[WorkerHeartbeat],
) -> None:
    harness = PlannerHarness(playbook())
    harness.workers = tuple(beats)
    harness.start()
    assert len(harness.sent()) == 50
    harness.tell(took(harness.sent()[0], 1))
    assert not batches(harness)


def test_every_item_of_a_batch_ends_once_and_the_last_ends_the_command() -> None:
    harness, command = batched()
    first, second, *others = indexes(command)
    assert harness.tell(ended(command, first), ended(command, first)) == ["call.done"]
    assert harness.tell(failed(command, second)) == ["call.error"]
    (event,) = harness.events("call.error")
    assert (event.item_index, event.in_batch.command_id) == (second, command.command_id)
    assert event.command_id != command.command_id
    types = harness.tell(*[ended(command, index) for index in others])
    assert types[: len(others) + 1] == ["call.done"] * len(others) + ["command.completed"]
    assert (loop_of(harness).success, loop_of(harness).failed) == (1 + 1 + len(others), 1)
    # A late report about an item of the batch changes nothing.
    assert harness.tell(ended(command, first)) == []


def test_an_end_without_an_item_says_nothing_and_such_a_failure_ends_the_first() -> None:
    harness, command = batched()
    assert harness.tell(done(command)) == []
    first, *others = indexes(command)
    types = harness.tell(failed(command))
    # The first had begun, the others get commands of their own.
    assert types[:3] == ["call.error", "loop.items_returned", "command.failed"]
    assert harness.events("call.error")[-1].item_index == first
    assert [item.work.index for item in harness.sent()][: len(others)] == others  # type: ignore[union-attr]  # items


def test_a_lost_batch_runs_again_without_what_had_ended() -> None:
    harness, command = batched()
    harness.tell(ended(command, indexes(command)[0]))
    assert harness.tell(lost(command)) == ["command.reissued"]
    (again,) = harness.sent()
    assert (again.attempt, indexes(again)) == (2, indexes(command)[1:])
    assert harness.tell(ended(command, indexes(again)[0])) == ["command.rejected"]


def test_only_the_item_that_ran_fails_when_the_attempts_are_used_up() -> None:
    harness, command = batched()
    harness.tell(lost(command))
    (again,) = harness.sent()
    first, *others = indexes(again)
    assert harness.tell(lost(again)) == ["call.error", "command.reissued"]
    (event,) = harness.events("call.error")
    assert (event.item_index, event.error.kind) == (first, "worker_lost")
    (third,) = harness.sent()
    assert indexes(third) == others
    # The others had one attempt: they have another.
    assert harness.tell(ended(third, others[0]), lost(third)) == [
        "call.done",
        "call.error",
        "command.reissued",
    ]


def test_items_that_were_given_back_go_out_alone_after_the_attempt_that_had_them() -> None:
    harness, command = batched()
    harness.tell(lost(command))
    (again,) = harness.sent()
    first, *others = indexes(again)
    returned = facts.ItemsReturned(
        command_id=again.command_id, attempt=2, worker_id=WorkerId("w"), items=[*others, 999]
    )
    assert harness.tell(returned) == ["loop.items_returned"]
    assert loop_of(harness).returned == dict.fromkeys(others, ReturnedItem(attempt=2, losses=1))
    # They take long: others get commands of their own, as many as are allowed.
    harness.tell(facts.TimerDue())
    sent = harness.sent()
    assert {command.attempt for command in sent if command.work.index in others} == {2}  # type: ignore[union-attr]  # it has one
    assert not batches(harness)
    assert loop_of(harness).in_flight == 50
    types = harness.tell(ended(again, first))
    assert types[:2] == ["call.done", "command.completed"]


def test_an_item_that_waits_gets_a_command_of_its_own_and_goes_on_there() -> None:
    harness, command = batched()
    first, *others = indexes(command)
    until = harness.now + timedelta(seconds=60)
    wait = TimeWait(key="1/t", task="t", timeout_s=60, until=until, reason="retry")
    parked = facts.CommandParked(
        command_id=command.command_id,
        attempt=1,
        worker_id=WorkerId("w"),
        resume_ref=REF,
        wait=wait,
        item_index=first,
    )
    types = harness.tell(parked, parked)
    assert types == [
        "loop.items_returned",
        "command.issued",
        "command.started",
        "command.parked",
    ]
    assert harness.sent() == []
    harness.wait(61)
    harness.tell(facts.TimerDue())
    resumed = [item for item in harness.sent() if item.resume is not None]
    assert [item.work.index for item in resumed] == [first]  # type: ignore[union-attr]  # it has one
    assert harness.tell(done(resumed[0]))[:2] == ["command.completed", "call.done"]
    assert harness.tell(ended(command, others[0]))[0] == "call.done"


def test_a_loop_of_batches_ends_with_every_item_counted() -> None:
    harness = begun()
    waiting = list(harness.sent())
    while waiting:
        command = waiting.pop(0)
        if isinstance(command.work, BatchWork):
            harness.tell(*[ended(command, index) for index in command.work.indexes])
        else:
            harness.tell(took(command, 1))
        waiting += harness.sent()
    ends = [event.item_index for event in harness.events("call.done")]
    assert sorted(ends) == list(range(ITEMS))
    assert len(harness.events("command.issued")) < ITEMS // 2


def test_a_cancelled_batch_counts_each_item_that_had_not_ended() -> None:
    harness, command = batched()
    harness.tell(ended(command, indexes(command)[0]))
    harness.tell(facts.CancelRequested(reason="enough"))
    assert command.command_id in harness.last.to_stop  # type: ignore[union-attr]  # it has one
    stopped = facts.CommandStopped(
        command_id=command.command_id, attempt=1, worker_id=WorkerId("w")
    )
    assert harness.tell(stopped) == ["command.cancelled"]


def park(command: Command, index: int | Any, harness: PlannerHarness) -> facts.CommandParked:
    until = harness.now + timedelta(seconds=600)
    return facts.CommandParked(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WorkerId("w"),
        resume_ref=REF,
        wait=TimeWait(key="1/t", task="t", timeout_s=600, until=until, reason="retry"),
        item_index=index,
    )


def test_items_that_wait_take_no_place_of_those_that_run() -> None:
    harness = begun()
    waiting = list(harness.sent())
    parked = 0
    while waiting:
        command = waiting.pop(0)
        if isinstance(command.work, BatchWork):
            harness.tell(*[ended(command, index) for index in command.work.indexes])
        elif parked < 10 and command.work.index % 3:  # type: ignore[union-attr]  # an item's
            parked += 1
            harness.tell(park(command, UNSET, harness))
            harness.tell(facts.TimerDue())
        else:
            harness.tell(took(command, 1))
        waiting += harness.sent()
    assert len(harness.state.commands) == parked
    assert loop_of(harness).success == ITEMS - parked


def test_an_item_that_parks_in_a_pause_goes_on_once() -> None:
    harness, command = batched()
    harness.tell(lost(command))
    (again,) = harness.sent()
    harness.tell(facts.PauseRequested(request_id="p"))
    harness.tell(park(again, indexes(again)[0], harness))
    assert harness.state.held == {}
    harness.tell(facts.ResumeRequested(request_id="r"))
    assert [item for item in harness.sent() if item.resume is not None] == []
    assert harness.events("command.parked")[-1].attempt == 2


def test_no_item_is_begun_more_often_than_allowed_after_it_was_given_back() -> None:
    harness, command = batched()
    harness.tell(lost(command))
    (again,) = harness.sent()
    first, second, *_ = indexes(again)
    harness.tell(
        facts.ItemsReturned(
            command_id=again.command_id, attempt=2, worker_id=WorkerId("w"), items=[second]
        )
    )
    harness.tell(ended(again, first))
    harness.tell(facts.TimerDue())
    (alone,) = [
        item
        for item in harness.commands.values()
        if isinstance(item.work, ItemWork) and item.work.index == second
    ]
    # It may have begun in the batch that was lost: this is its second and last time.
    assert harness.tell(lost(alone))[:2] == ["command.failed", "call.error"]


def test_a_lost_batch_counts_as_one_that_ran_again() -> None:
    harness, command = batched()
    harness.tell(lost(command))
    (again,) = harness.sent()
    assert loop_of(harness).retried == 1
    harness.tell(
        facts.ItemsReturned(
            command_id=again.command_id,
            attempt=2,
            worker_id=WorkerId("w"),
            items=indexes(again)[1:],
        )
    )
    harness.tell(facts.TimerDue())
    assert loop_of(harness).retried == 1


def test_what_was_lost_tells_nothing_of_how_long_items_take() -> None:
    harness, command = batched()
    before = loop_of(harness).item_us
    harness.tell(lost(command))
    (again,) = harness.sent()
    harness.tell(lost(again))
    assert loop_of(harness).item_us == before
    error = harness.events("call.error")[-1].error
    assert f"(item-{indexes(command)[0]}) was dispatched 2 times" in error.message


def test_what_is_given_back_twice_or_by_others_is_given_back_once() -> None:
    harness, command = batched()
    first, second, *_ = indexes(command)
    returned = facts.ItemsReturned(
        command_id=command.command_id,
        attempt=1,
        worker_id=WorkerId("w"),
        items=[second, first, second, 999],
    )
    assert harness.tell(returned, returned) == ["loop.items_returned"]
    assert harness.events("loop.items_returned")[-1].items == [first, second]
