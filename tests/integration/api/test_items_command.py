"""`noetl items` and `noetl rerun --failed`, with a planner's API at hand."""

import msgspec
import pytest
from tests.support.api import beginning, ending
from tests.support.running_api import Noetl, RunningApi
from tests.support.storage import an_execution

from noetl_contracts import ids
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.loop_events import LoopStarted
from noetl_contracts.events.step_events import CallDone, CallError
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import ResultEnvelope

RUN = RunId("11")
BAD = 7
COUNT = 12


@pytest.fixture
def known(running_api: RunningApi) -> ExecutionId:
    """An execution whose loop had one item that failed."""

    def end(index: int) -> CallDone | CallError:
        about = {
            "step": "start",
            "run_id": RUN,
            "command_id": ids.derive_command_id(RUN, f"item-{index}"),
            "item_index": index,
        }
        if index == BAD:
            cause = ErrorObject(kind="python", message="no \x1b[31mseven" + "!" * 200)
            return CallError(error=cause, **about)  # type: ignore[arg-type]  # fields by name
        return CallDone(result=ResultEnvelope(status="ok"), **about)  # type: ignore[arg-type]  # fields by name

    loop = LoopStarted(
        step="start",
        run_id=RUN,
        mode="parallel",
        max_in_flight=3,
        total=COUNT,
        collection=[f"name-{index}" for index in range(COUNT)],
    )
    execution_id = an_execution()
    events = [*beginning(), loop, *map(end, range(COUNT)), *ending()]

    async def keep() -> None:
        await running_api.world.append(execution_id, events, has_keys=True)
        await running_api.world.project(execution_id)

    running_api.call(keep)
    return execution_id


def test_a_table_shows_index_state_attempts_input_and_error(
    noetl: Noetl, known: ExecutionId
) -> None:
    answer = noetl("items", known, "start", "--failed")
    assert answer.code == 0, answer
    head, row = answer.out.splitlines()
    assert head.split() == ["INDEX", "STATE", "ATTEMPTS", "SECONDS", "INPUT", "ERROR"]
    assert row.split()[:4] == [str(BAD), "failed", "1", f"name-{BAD}"]
    assert row.endswith("!…")
    assert "\x1b" not in answer.out
    # What the ledger counts stands beside the table.
    assert "start: 12 in all" in answer.err


def test_the_only_loop_need_not_be_named_and_json_has_an_item_a_line(
    noetl: Noetl, known: ExecutionId
) -> None:
    answer = noetl("items", known, "--output", "json", "--limit", "5")
    items = [msgspec.json.decode(line) for line in answer.out.splitlines()]
    assert [item["index"] for item in items] == list(range(5))
    assert f"More follow: noetl items {known} start --after 4" in answer.err
    rest = noetl("items", known, "start", "--output", "json", "--after", "4", "--all")
    assert len(rest.out.splitlines()) == COUNT - 5
    assert "More follow" not in rest.err


def test_what_cannot_be_meant_is_refused(noetl: Noetl, known: ExecutionId) -> None:
    answer = noetl("items", known, "start", "--failed", "--state", "completed")
    assert (answer.code, "exclude each other" in answer.err) == (2, True)
    assert noetl("items", known, "none").code == 2
    assert "is no index" in noetl("items", known, "start", "--after", "x").err


def test_a_rerun_of_a_playbook_that_is_gone_says_so(noetl: Noetl, known: ExecutionId) -> None:
    answer = noetl("rerun", known, "--failed", "--detach")
    assert answer.code == 2
    assert "try:" in answer.err
