"""How long a unit holds its worker, and in which order rows of a frame wait."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.working import step_of

from noetl_chassis.clock import SystemClock
from noetl_contracts.commands.waits import WAIT_S_MAX, ChildWait, TimeWait, Wait
from noetl_playbook.lint.step_checks import HELD_S_MAX
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.pipeline.compiled_tasks import compile_pipeline
from noetl_worker.pipeline.parked_work import (
    PipelineParked,
    PipelinePosition,
    SavedPipeline,
    SavedState,
    WaitingRow,
)
from noetl_worker.pipeline.task_waits import TimeWaits, is_time_over, sort_waiting_rows

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TASK = compile_pipeline(step_of("  - {step: s, tool: {kind: noop}}"), {}).tasks[0]


def waits(*, is_parkable: bool) -> TimeWaits:
    return TimeWaits(
        clock=SystemClock(), held_s=5.0, is_parkable=is_parkable, emitter=None, step="s", place=""
    )


async def test_a_wait_above_the_threshold_lets_the_worker_go() -> None:
    with pytest.raises(PipelineParked) as parked:
        await waits(is_parkable=True).pause_for(
            5.1, TASK, PipelinePosition(visits=[1], attempt=2), "retry"
        )
    wait = parked.value.wait
    assert isinstance(wait, TimeWait)
    assert (wait.timeout_s, wait.task, wait.key) == (5.1, TASK.name, f"{TASK.name}/1/2/retry/0")


async def test_no_wait_is_longer_than_a_year() -> None:
    with pytest.raises(PipelineParked) as parked:
        waits(is_parkable=True).leave_worker(1e12, TASK, PipelinePosition(visits=[1]), "rate_limit")
    wait = parked.value.wait
    assert isinstance(wait, TimeWait)
    assert wait.timeout_s == WAIT_S_MAX


async def test_a_unit_that_cannot_let_its_worker_go_refuses_a_long_wait() -> None:
    with pytest.raises(ToolFailure) as refused:
        await waits(is_parkable=False).pause_for(
            HELD_S_MAX + 1, TASK, PipelinePosition(visits=[1]), "jump"
        )
    error = refused.value.error
    assert (error.kind, error.code, error.task) == ("limit", "held_wait", TASK.name)
    assert "transaction" in error.message


def row(index: int, wait: Wait) -> WaitingRow:
    scratch = SavedState(
        ctx={}, patch={}, iter={}, results={}, last=None, previous=None, variables={}, views={}
    )
    return WaitingRow(
        index=index,
        saved=SavedPipeline(walk=PipelinePosition(visits=[]), scratch=scratch),
        wait=wait,
    )


def rest(seconds: float) -> TimeWait:
    until = NOON + timedelta(seconds=seconds)
    return TimeWait(key=f"k{seconds}", task="t", reason="retry", until=until, timeout_s=seconds)


def test_rows_wait_for_others_first_and_then_by_time_for_what_is_left_of_it() -> None:
    child = ChildWait(key="c", task="t", path="p", timeout_s=1.0)
    now = NOON + timedelta(seconds=100)
    ordered = sort_waiting_rows(
        [row(0, rest(300)), row(1, rest(50)), row(2, child), row(3, rest(200))], now
    )
    assert [item.index for item in ordered] == [2, 1, 3, 0]
    assert [item.wait.timeout_s for item in ordered] == [1.0, 0.0, 100.0, 200.0]
    assert [is_time_over(item.wait, now) for item in ordered] == [False, True, False, False]
