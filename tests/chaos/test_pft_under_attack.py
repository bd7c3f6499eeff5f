"""PFT at 1 x 100 while something is killed, paused, restarted or wiped."""

import signal
import time
from collections.abc import Callable

import pytest
from tests.chaos.conftest import LEASE_S
from tests.support import pft
from tests.support.parity import assert_parity
from tests.support.pft import Fixture, Run
from tests.support.servers import wait_past
from tests.support.stack import Stack

# More than one wait may take its whole patience.
pytestmark = pytest.mark.timeout(480)

WORKLOAD = {"lease_seconds": LEASE_S, "heartbeat_seconds": 1, "frame_rows": 20}
PATIENTS = 100
# How many of each there are, in round numbers.
REQUESTS = 3_000
PAGES = 850
FRAMES_OF_5 = 550


def begin(
    stack: Stack,
    served: Fixture,
    variant: str = "a",
    *,
    patients: int = PATIENTS,
    **workload: object,
) -> Run:
    shape = WORKLOAD | workload
    return pft.start(
        stack, served, variant=variant, facilities=1, patients=patients, workload=shape
    )


def conclude(run: Run, *options: str) -> None:
    run.wait()
    run.verify("--disturbed", "--frame-rows", "20", *options)
    assert_parity(run.stack, run.execution_id)


@pytest.mark.parametrize("name", ["planner-1", "outbox-1", "projector-1", "reaper-1"])
def test_a_killed_service_costs_only_time(stack: Stack, served: Fixture, name: str) -> None:
    # Its successor starts before half of the work is done, so that both kills come amid work.
    run = begin(stack, served, patients=2 * PATIENTS)
    for share in (1, 2):
        run.wait_for_requests(share * REQUESTS // 2)
        stack.kill(name)
    conclude(run)


def test_a_killed_workers_frames_are_replayed_by_another(stack: Stack, served: Fixture) -> None:
    run = begin(stack, served)
    run.wait_for_requests(REQUESTS // 3)
    stack.kill("worker-1")
    conclude(run)


def test_a_killed_workers_batches_are_asked_for_again_by_another(
    stack: Stack, served: Fixture
) -> None:
    run = begin(stack, served, "b", frame_rows=5)
    run.wait_for_requests(FRAMES_OF_5 // 3)
    stack.kill("worker-1")
    conclude(run, "--frame-rows", "5")


@pytest.mark.parametrize("fans_out", [False, True])
def test_a_killed_worker_loses_no_page_that_a_page_enqueued(
    stack: Stack, served: Fixture, *, fans_out: bool
) -> None:
    run = begin(stack, served, "c", fan_out=fans_out)
    run.wait_for_requests((REQUESTS if fans_out else PAGES) // 3)
    stack.kill("worker-1")
    conclude(run, *(["--fan-out"] if fans_out else []))


def test_a_worker_paused_past_its_lease_commits_nothing(stack: Stack, served: Fixture) -> None:
    run = begin(stack, served)
    run.wait_for_requests(REQUESTS // 3)
    sleep_past_the_lease(stack, "worker-1")
    conclude(run)


def sleep_past_the_lease(stack: Stack, name: str) -> None:
    stack.pause(name)
    paused_at = time.monotonic()
    try:
        wait_past(paused_at, LEASE_S * 2)
    finally:
        stack.resume(name)


def test_frames_in_a_transaction_take_effect_once_however_often_workers_die(
    stack: Stack, served: Fixture
) -> None:
    """Workers are killed three times, and one sleeps past its lease with a transaction open."""
    run = begin(stack, served, "b", frame_rows=5, exactly_once=True)
    for turn in range(3):
        run.wait_for_requests((turn + 1) * FRAMES_OF_5 // 5)
        stack.kill(f"worker-{1 + turn % 2}")
    run.wait_for_requests(4 * FRAMES_OF_5 // 5)
    sleep_past_the_lease(stack, "worker-1")
    conclude(run, "--frame-rows", "5", "--exactly-once")


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(lambda stack: restart(stack, "postgres"), id="restart of Postgres"),
        pytest.param(lambda stack: outage(stack, "nats", 10), id="10 s without NATS"),
        pytest.param(lambda stack: stack.wipe_nats(), id="JetStream's store wiped"),
    ],
)
def test_a_server_that_goes_away_costs_only_time(
    stack: Stack, served: Fixture, attack: Callable[[Stack], None]
) -> None:
    run = begin(stack, served)
    run.wait_for_requests(REQUESTS // 3)
    attack(stack)
    conclude(run)


def restart(stack: Stack, name: str) -> None:
    with stack.without(name, how=signal.SIGINT):
        pass


def outage(stack: Stack, name: str, seconds: float) -> None:
    with stack.without(name):
        wait_past(time.monotonic(), seconds)
