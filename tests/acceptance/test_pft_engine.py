"""PFT through the front door of a real stack, judged by the verifier in its strictest form."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support import metrics, pft
from tests.support.parity import assert_parity
from tests.support.pft import Fixture
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(400)

RUN_S = 240.0
SLOTS_THAT_COMMITTED = """
SELECT DISTINCT opened.context->>'slot' AS slot
FROM noetl.event done JOIN noetl.event opened USING (execution_id, frame_id)
WHERE done.execution_id = $1 AND done.event_type = 'frame.committed' AND opened.event_type = 'frame.dispatched'
"""  # noqa: E501  # the statement reads as one


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack with two workers; the runs share nothing but it."""
    folder = tmp_path_factory.mktemp("acceptance") / "stack"
    with running_stack(folder, "--workers", "2") as running:
        pft.prepare(running)
        yield running


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Fixture]:
    """A fixture server with its own request ledger."""
    with pft.fixture(tmp_path) as running:
        yield running


@pytest.mark.parametrize(
    ("facilities", "patients"),
    [
        pytest.param(1, 50, id="1x50"),
        pytest.param(4, 20, id="4x20"),
        pytest.param(1, 400, id="1x400"),
    ],
)
def test_every_page_is_fetched_once_and_every_witness_agrees(
    stack: Stack, served: Fixture, facilities: int, patients: int
) -> None:
    run = pft.start(stack, served, facilities=facilities, patients=patients)
    run.wait(RUN_S)
    run.verify()
    assert_parity(stack, run.execution_id)


def test_services_show_the_metrics_of_the_docs(stack: Stack, served: Fixture) -> None:
    pft.start(stack, served, facilities=1, patients=20).wait(RUN_S)
    metrics.run_rows_between_steps(stack)
    shown = {
        service: {
            sample.name
            for process in stack.names(service)
            for metric in metrics.scrape_process(stack, process)
            for sample in metric.samples
        }
        for service in metrics.SERVICES
    }
    missing = [
        (metric, service)
        for metric, services in metrics.read_metrics_table().items()
        for service in services
        if not shown[service] & {metric, f"{metric}_count"}
    ]
    assert missing == []


@pytest.mark.parametrize("workload", [{}, {"frame_rows": 7, "exactly_once": True}])
def test_one_request_a_frame_saves_the_same_units(
    stack: Stack, served: Fixture, workload: dict[str, Any]
) -> None:
    run = pft.start(stack, served, variant="b", facilities=1, patients=50, workload=workload)
    run.wait(RUN_S)
    options = ["--exactly-once"] if workload else []
    report = run.verify("--frame-rows", str(workload.get("frame_rows", 50)), *options)
    assert report["requests"] == report["frames"]
    assert_parity(stack, run.execution_id)


@pytest.mark.parametrize("fans_out", [False, True])
@pytest.mark.parametrize(("patients", "slots", "frame_rows"), [(50, 8, 10), (20, 3, 1)])
def test_work_that_makes_work_is_done_to_the_last_page(
    stack: Stack, served: Fixture, *, fans_out: bool, patients: int, slots: int, frame_rows: int
) -> None:
    shape = {"slots": slots, "frame_rows": frame_rows, "fan_out": fans_out}
    run = pft.start(stack, served, variant="c", facilities=1, patients=patients, workload=shape)
    run.wait(RUN_S)
    options = ["--fan-out"] if fans_out else []
    report = run.verify("--slots", str(slots), "--frame-rows", str(frame_rows), *options)
    assert report["requests"] == report["expected_units"]
    assert_parity(stack, run.execution_id)


def test_slots_that_ran_dry_come_back_for_work_that_appears_later(
    stack: Stack, tmp_path: Path
) -> None:
    """5 rows at first, so three of eight slots run dry at once; 19 rows appear after that."""
    shape = {"slots": 8, "frame_rows": 1, "fan_out": True}
    with pft.fixture(tmp_path, "--latency", "fixed:500") as served:
        run = pft.start(stack, served, variant="c", facilities=1, patients=1, workload=shape)
        run.wait(RUN_S)
        report = run.verify("--frame-rows", "1", "--fan-out")
    assert report["expected_units"] == 24
    committing = asyncio.run(_slots_that_committed(stack, run.execution_id))
    assert len(committing) > 5, committing
    assert_parity(stack, run.execution_id)


async def _slots_that_committed(stack: Stack, execution_id: str) -> set[str]:
    db = await asyncpg.connect(stack.url("postgres_reader"))
    try:
        found = await db.fetch(SLOTS_THAT_COMMITTED, int(execution_id))
    finally:
        await db.close()
    return {row["slot"] for row in found}
