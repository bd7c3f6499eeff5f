"""Container tasks as Jobs: what an API server is asked for, and what becomes of its answers."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.calls import call_of
from tests.support.fake_kubernetes import FakeCluster, ended_with, running, serve_cluster, waiting
from tests.support.polling import eventually
from tests.support.working import Bench, bench, command_of

from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandLost,
    CommandStarted,
    Fact,
)
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.container.kubernetes import runtime


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[FakeCluster, Bench]]:
    """A cluster, and a worker that runs containers there."""
    async with serve_cluster(tmp_path) as (found, address):
        settings = {
            "containers": "kubernetes",
            "container_images": ("*",),
            "kubernetes_api": address,
            "kubernetes_account_folder": str(tmp_path),
            "container_pod": "worker-0",
            "container_pod_uid": "uid-of-worker",
        }
        async with bench(**settings) as worker:
            yield found, worker


def call(**fields: Any) -> Call:
    return call_of("container", {"image": "alpine:3.20", **fields}, timeout_s=30)


async def outcome_of(cluster: tuple[FakeCluster, Bench], **fields: Any) -> Outcome:
    outcome = await cluster[1].tools.run(call(**fields))
    assert cluster[0].find("jobs") == []
    return outcome


async def test_a_job_is_made_of_a_task_and_gone_afterwards(
    cluster: tuple[FakeCluster, Bench],
) -> None:
    fake, _ = cluster
    seen: dict[str, Any] = {}

    def play(_: int) -> dict[str, Any]:
        seen.update({kind: fake.find(kind)[0] for kind in ("jobs", "secrets")})
        return ended_with(0, message='{"n": 4}')

    fake.play = play
    outcome = await outcome_of(
        cluster,
        command=["sh", "-c"],
        args=["echo $(date)"],
        env={"KEY": "canary-secret"},
        files=[{"path": "a.txt", "content": "hello"}],
        resources={"limits": {"memory": "64Mi", "cpu": "500m"}},
    )
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    assert (outcome.data["result"], outcome.data["exit_code"]) == ({"n": 4}, 0)
    assert outcome.data["pod_name"] == f"{outcome.data['job_name']}-pod"
    job, secret = seen["jobs"], seen["secrets"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 30)
    assert job["metadata"]["ownerReferences"][0]["uid"] == "uid-of-worker"
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == {"memory": str(64 * 1024**2), "cpu": "0.5"}
    assert container["args"] == ["echo $$(date)"]
    assert {volume["name"] for volume in pod["volumes"]} == {"work", "tmp", "own"}
    assert not any("hostPath" in volume for volume in pod["volumes"])
    # What is a secret stands in the Secret alone, which is the Job's.
    assert "canary-secret" not in str(job)
    assert b64decode(secret["data"]["env-0"]) == b"canary-secret"
    assert b64decode(secret["data"]["file-0"]) == b"hello"
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert job["metadata"]["labels"]["noetl.io/network"] == "false"


async def test_the_last_line_of_the_log_is_the_result(cluster: tuple[FakeCluster, Bench]) -> None:
    """A log that breaks off is followed from its last line."""
    fake, _ = cluster
    fake.play = lambda reads: running() if reads < 3 else ended_with(0)
    first = b"2026-01-01T00:00:00.000000001Z one\n"
    second = b"2026-01-01T00:00:00.000000002Z [2]\n"
    fake.logs = [first, first + second]
    outcome = await outcome_of(cluster)
    assert isinstance(outcome.data, dict), outcome.error
    assert (outcome.data["logs"], outcome.data["result"]) == ("one\n[2]\n", [2])


@pytest.mark.parametrize(
    ("status", "kind", "retryable", "named"),
    [
        (ended_with(3), "container", False, "ended with code 3"),
        (ended_with(137, reason="OOMKilled"), "container_oom", False, "resources.limits.memory"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            "container_evicted",
            True,
            "low on memory",
        ),
        (
            {
                **ended_with(143),
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "Preempted",
                    }
                ],
            },
            "container_evicted",
            True,
            "Preempted",
        ),
        (waiting("ImagePullBackOff", "no such tag"), "container_start", True, "no such tag"),
        (waiting("InvalidImageName"), "container_start", False, "InvalidImageName"),
    ],
)
async def test_each_end_is_told_as_what_it_is(
    cluster: tuple[FakeCluster, Bench],
    status: dict[str, Any],
    kind: str,
    retryable: bool,  # noqa: FBT001 - a parameter of the test
    named: str,
) -> None:
    cluster[0].play = lambda _: status
    outcome = await outcome_of(cluster)
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == (kind, retryable)
    assert named in outcome.error.message


async def test_a_job_past_its_deadline_has_timed_out(cluster: tuple[FakeCluster, Bench]) -> None:
    cluster[0].play = lambda reads: running() if reads == 0 else None
    cluster[0].job_status = {"conditions": [{"type": "Failed", "reason": "DeadlineExceeded"}]}
    outcome = await outcome_of(cluster)
    assert outcome.error is not None
    assert outcome.error.kind == "timeout"


async def test_a_cancelled_task_takes_its_job_along(cluster: tuple[FakeCluster, Bench]) -> None:
    fake, worker = cluster
    fake.play = lambda _: running()
    task = asyncio.ensure_future(worker.tools.run(call()))

    async def is_there() -> bool:
        return bool(fake.find("jobs"))

    await eventually(is_there)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake.find("jobs") == fake.find("secrets") == []


async def test_an_attempt_that_is_delivered_again_replaces_its_job(
    cluster: tuple[FakeCluster, Bench],
) -> None:
    fake, worker = cluster
    wanted = structs.replace(call(), visit=77)
    name = f"noetl-{wanted.attempt_key.removeprefix('sha256:')[:32]}"
    fake.objects["jobs", name] = {
        "metadata": {"name": name, "uid": "of-the-former"},
        "spec": {"suspend": False},
    }
    outcome = await worker.tools.run(wanted)
    assert outcome.error is None, outcome.error
    assert fake.requests.count(("DELETE", f"jobs/jobs/{name}")) == 2


async def test_a_worker_that_is_late_leaves_the_job_of_the_next_delivery(
    cluster: tuple[FakeCluster, Bench],
) -> None:
    fake, worker = cluster
    fake.play = lambda _: running()
    task = asyncio.ensure_future(worker.tools.run(call()))

    async def is_there() -> bool:
        return bool(fake.find("jobs")) and not fake.find("jobs")[0]["spec"]["suspend"]

    await eventually(is_there)
    (job,) = fake.find("jobs")
    # Another worker was handed the attempt, and replaced its Job.
    job["metadata"]["uid"] = "of-the-next-delivery"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake.find("jobs") == [job]


async def test_a_missing_right_is_told_with_the_way_out(
    cluster: tuple[FakeCluster, Bench],
) -> None:
    cluster[0].refusal = (403, "jobs.batch is forbidden")
    outcome = await cluster[1].tools.run(call())
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("config", False)
    assert "jobs.batch is forbidden" in outcome.error.message
    assert "containers.onKubernetes" in outcome.error.message


async def test_a_task_goes_on_when_its_token_is_not_taken_for_a_while(
    cluster: tuple[FakeCluster, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_UNREACHABLE_PAUSE_S", 0.2)
    fake, worker = cluster
    fake.play = lambda _: running()
    task = asyncio.ensure_future(worker.tools.run(call()))

    async def is_watched() -> bool:
        return any(path.endswith("-pod") for _, path in fake.requests)

    await eventually(is_watched)
    fake.requests.clear()
    fake.refusal = (401, "Unauthorized")
    await eventually(is_watched)
    fake.play = lambda _: ended_with(0)
    fake.refusal = None
    outcome = await task
    assert outcome.error is None, outcome.error


async def test_a_token_that_is_not_taken_may_be_tried_again(
    cluster: tuple[FakeCluster, Bench],
) -> None:
    cluster[0].refusal = (401, "Unauthorized")
    outcome = await cluster[1].tools.run(call())
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("connection", True)
    assert "pod was deleted" in outcome.error.message


async def test_a_worker_without_an_account_says_so(tmp_path: Path) -> None:
    settings = {"containers": "kubernetes", "container_images": ("*",)}
    async with bench(kubernetes_account_folder=str(tmp_path / "none"), **settings) as worker:
        outcome = await worker.tools.run(call())
    assert outcome.error is not None
    assert outcome.error.kind == "config"
    assert "NOETL_WORKER_KUBERNETES_ACCOUNT_FOLDER" in outcome.error.message


async def leave_work(cluster: tuple[FakeCluster, Bench]) -> list[Fact]:
    """Run a command until its worker stops, and release it as the drain does; return its facts."""
    worker = cluster[1]
    step = "\n  - {step: s, tool: {kind: container, image: 'alpine:3.20'}}\n"
    running_command = asyncio.ensure_future(worker.run(command_of(step, lease_s=30)))
    async with asyncio.timeout(30):
        await worker.stop.wait()
    assert worker.lane.running_count == 1
    worker.lane.release_commands()
    return await running_command


def assert_given_back(facts: list[Fact]) -> None:
    ends = [fact for fact in facts if not isinstance(fact, CommandStarted)]
    (lost,) = [fact for fact in ends if isinstance(fact, CommandLost)]
    assert (lost.reason, lost.is_release) == ("released", True)
    assert not [fact for fact in ends if isinstance(fact, CommandCompleted | CommandFailed)]


@pytest.mark.parametrize("now", [{}, {"worker-0": "uid-of-the-next"}], ids=["gone", "replaced"])
@pytest.mark.parametrize("is_job_left", [True, False], ids=["ended", "removed"])
async def test_a_worker_whose_pod_is_gone_leaves_its_jobs_to_the_next_one(
    cluster: tuple[FakeCluster, Bench],
    now: dict[str, str],
    is_job_left: bool,  # noqa: FBT001 - pytest gives it
) -> None:
    fake, _ = cluster

    def play(reads: int) -> dict[str, Any] | None:
        if reads == 0:
            return running()
        fake.workers = now
        if is_job_left:
            return ended_with(137)
        fake.objects.clear()
        return None

    fake.play = play
    assert_given_back(await leave_work(cluster))


@pytest.mark.parametrize("reads_before", [0, 3], ids=["before it starts", "while it runs"])
async def test_a_worker_whose_token_ends_for_good_gives_its_command_back(
    cluster: tuple[FakeCluster, Bench], monkeypatch: pytest.MonkeyPatch, reads_before: int
) -> None:
    monkeypatch.setattr(runtime, "_UNREACHABLE_PAUSE_S", 0.0)
    fake, worker = cluster
    assert (await worker.tools.run(call())).error is None

    def play(reads: int) -> dict[str, Any]:
        if reads > reads_before:
            fake.refusal = (401, "Unauthorized")
        return running()

    fake.play = play
    if reads_before == 0:
        fake.refusal = (401, "Unauthorized")
    assert_given_back(await leave_work(cluster))
