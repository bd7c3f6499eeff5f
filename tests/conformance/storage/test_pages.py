"""An execution is shown as it is read: its row, where it ends, and a page of its events."""

from datetime import UTC, datetime
from typing import Any

from tests.support.builders import ORGANIZATION, STORIES, TENANT, History
from tests.support.storage import Stores, a_fence, an_append, an_execution

from noetl_contracts import codec
from noetl_contracts.commands.data_checks import CheckReport
from noetl_contracts.commands.task_metrics import TaskMetrics
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter, StepExit, StepFailed
from noetl_contracts.ids import CommandId, OrganizationId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state
from noetl_storage.ports import history_ports
from noetl_storage.ports.history_ports import HistoryPage

# What jsonb would not keep as it is.
ODD = {"large": 1e20, "zero": -0.0, "nothing": "a\u0000b"}
PLACE = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


def told(name: str) -> History:
    """A story under an identity of its own, and an event that is kept as text."""
    history = History(an_execution())
    history.add(*(envelope.event for envelope in STORIES[name]().envelopes))
    last = StepExit(step="odd", run_id=RunId("99"), status=RunStatus.COMPLETED, patch=ODD)
    history.add(last)
    return history


async def kept(stores: Stores, history: History) -> None:
    replay = HistoryReplay(build_empty_state(history.execution_id, TENANT, ORGANIZATION))
    replay.feed_events(history.envelopes)
    rows = {surface: list(found.values()) for surface, found in replay.surfaces.items()}
    await stores.ledger.append(an_append(await a_fence(stores), history.stream()))
    await stores.projections.apply_rows(
        shard=0, rows=rows, positions={history.execution_id: (0, len(history.envelopes))}
    )


async def page(stores: Stores, history: History, after: int = 0, most: int = 1000) -> HistoryPage:
    history_page = await stores.pages.find_page(
        history.execution_id, **PLACE, after_version=after, events_max=most
    )
    assert history_page is not None
    return history_page


async def test_every_event_is_shown_as_it_is_read(stores: Stores) -> None:
    for name in STORIES:
        history = told(name)
        await kept(stores, history)
        found = await page(stores, history)
        read = await stores.ledger_reader.read_events(history.execution_id)
        assert found.events == codec.convert_value(
            codec.to_builtins([history_ports.build_shown_event(item) for item in read]),
            list[history_ports.ShownEvent],
        )
        (row,) = await stores.projections.list_rows("execution", history.execution_id)
        assert (found.path, found.status, found.version) == (row["path"], row["status"], len(read))
        assert found.catalog_version == row["catalog_version"]
        assert found.parent_execution_id == row["parent_execution_id"]


async def test_a_page_begins_behind_a_version_and_ends_where_there_is_no_more(
    stores: Stores,
) -> None:
    history = told(next(iter(STORIES)))
    await kept(stores, history)
    last = len(history.envelopes)
    assert [event.version for event in (await page(stores, history, 2, 3)).events] == [3, 4, 5]
    assert [event.version for event in (await page(stores, history, last - 1)).events] == [last]
    beyond = await page(stores, history, last + 5)
    assert (beyond.events, beyond.version) == ([], last)


async def test_what_is_not_projected_or_not_ones_own_has_no_page(stores: Stores) -> None:
    history = told(next(iter(STORIES)))
    other = {**PLACE, "organization_id": OrganizationId("another")}
    bounds = {"after_version": 0, "events_max": 10}
    await stores.ledger.append(an_append(await a_fence(stores), history.stream()))
    assert await stores.pages.find_page(history.execution_id, **PLACE, **bounds) is None
    assert await stores.pages.find_page(an_execution(), **PLACE, **bounds) is None
    another = told(next(iter(STORIES)))
    await kept(stores, another)
    assert await stores.pages.find_page(another.execution_id, **other, **bounds) is None


FAILED_TRY = FailedTry(
    task="t", attempt=1, at=datetime(2026, 1, 2, tzinfo=UTC), kind="timeout", message="late"
)


def done(run: str, **fields: Any) -> CallDone:
    return CallDone(
        step=f"s{run}",
        run_id=RunId(run),
        command_id=CommandId("9"),
        result=ResultEnvelope(status="ok"),
        **fields,
    )


async def test_runs_are_found_by_what_began_and_ended_them(stores: Stores) -> None:
    history = History(an_execution())
    for number in (1, 2, 3):
        run = {"step": f"s{number}", "run_id": RunId(str(number))}
        history.add(StepEnter(**run, activation=number))
    end = {"command_id": CommandId("9"), "error": ErrorObject(kind="unknown", message="no")}
    history.add(
        CallError(step="s2", run_id=RunId("2"), item_index=0, **end),
        CallError(step="s2", run_id=RunId("2"), **end),
        StepExit(step="s2", run_id=RunId("2"), status=RunStatus.FAILED, patch=ODD),
        StepExit(step="s1", run_id=RunId("1"), status=RunStatus.COMPLETED),
        StepFailed(step="s3", run_id=RunId("3"), error=end["error"]),
        done("3", tries=[FAILED_TRY]),
        done("3", tries=[FAILED_TRY], item_index=1),
        done("3"),
    )
    await kept(stores, history)

    async def versions(after: int, most: int) -> list[int]:
        run_events = await stores.pages.find_run_events(
            history.execution_id, after_version=after, runs_max=most
        )
        return [run_event.version for run_event in run_events]

    assert await versions(0, 10) == [1, 2, 3, 5, 6, 7, 8, 9]
    assert await versions(0, 2) == [1, 2, 5, 6, 7]
    assert await versions(1, 1) == [2, 5, 6]
    assert await versions(3, 10) == []
    run_events = await stores.pages.find_run_events(
        history.execution_id, after_version=0, runs_max=2
    )
    assert run_events[3].context["patch"] == ODD


def build_checked_exit(step: str, run: str, **checks_by_task: list[CheckReport]) -> StepExit:
    tasks = {
        name: TaskMetrics(attempts=1, checks=tuple(checks))
        for name, checks in checks_by_task.items()
    }
    return StepExit(step=step, run_id=RunId(run), status=RunStatus.COMPLETED, tasks=tasks)


async def test_ends_of_runs_that_tell_of_checks_are_found_the_latest_first(stores: Stores) -> None:
    report = CheckReport(dataset="orders", check="not_null id", is_met=False, failed_rows=2)
    histories = [History(an_execution()) for _ in range(2)]
    for history in histories:
        history.add(StepEnter(step="load", run_id=RunId("1"), activation=1))
        history.add(
            build_checked_exit("load", "1", read=[], write=[report]),
            build_checked_exit("plain", "2", read=[]),
            StepExit(step="none", run_id=RunId("3"), status=RunStatus.COMPLETED),
            build_checked_exit("more", "4", write=[report]),
        )
        await kept(stores, history)
    ids = [history.execution_id for history in histories]
    newest = max(ids, key=int)

    async def find(step: str | None, most: int) -> list[tuple[str, int]]:
        events = await stores.pages.list_check_events(ids, step=step, events_max=most)
        return [(event.execution_id, event.version) for event in events]

    oldest = min(ids, key=int)
    assert await find(None, 10) == [(newest, 5), (newest, 2), (oldest, 5), (oldest, 2)]
    assert await find(None, 1) == [(newest, 5)]
    assert await find("load", 10) == [(newest, 2), (oldest, 2)]
    assert await find("plain", 10) == []
    (event, *_) = await stores.pages.list_check_events(ids, step="load", events_max=1)
    (told,) = event.context["tasks"]["write"]["checks"]
    assert told["failed_rows"] == 2
