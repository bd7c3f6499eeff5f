"""PFT at 1 x 200 while something is killed, paused, restarted or wiped."""

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

pytestmark = pytest.mark.timeout(240)

WORKLOAD = {"lease_seconds": LEASE_S, "heartbeat_seconds": 1, "frame_rows": 20}
REQUESTS = 6_000
PAGES = 1_700
FRAMES_OF_5 = 1_100


def begin(stack: Stack, served: Fixture, variant: str = "a", **workload: object) -> Run:
    shape = WORKLOAD | workload
    return pft.start(stack, served, variant=variant, facilities=1, patients=200, workload=shape)


def conclude(run: Run, *options: str) -> None:
    run.wait()
    run.verify("--disturbed", "--frame-rows", "20", *options)
    assert_parity(run.stack, run.execution_id)


@pytest.mark.parametrize("name", ["planner-1", "outbox-1", "projector-1", "reaper-1"])
def test_a_killed_service_costs_only_time(stack: Stack, served: Fixture, name: str) -> None:
    run = begin(stack, served)
    for share in (1, 2):
        run.wait_for_requests(share * REQUESTS // 4)
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
    stack.pause("worker-1")
    paused_at = time.monotonic()
    try:
        wait_past(paused_at, LEASE_S * 2)
    finally:
        stack.resume("worker-1")
    conclude(run)


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
