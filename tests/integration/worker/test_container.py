"""The container tool: fields are checked, and the missing runtime is named."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.calls import call_of
from tests.support.working import Bench, bench, command_of

from noetl_contracts.requests.facts import CommandFailed
from noetl_worker.tools.container.fields import merge_fields


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench() as found:
        yield found


async def error_of(worker: Bench, **fields: Any) -> Any:
    outcome = await worker.tools.run(call_of("container", fields))
    assert outcome.error is not None
    return outcome.error


@pytest.mark.parametrize(
    "fields",
    [
        {"image": "alpine:3.20", "command": ["sh", "-c"], "args": ["true"], "env": {"N": 1}},
        {"runtime": {"image": "alpine", "backoffLimit": 0, "serviceAccount": "x"}},
        {"job": {"image": "alpine"}, "env": [{"name": "N", "value": 1}]},
        {"image": "a", "files": [{"path": "/x", "content": "y"}], "restart_policy": "OnFailure"},
        {"image": "a", "resources": {"limits": {"memory": "1Gi"}}, "timeout": 60},
    ],
)
async def test_without_a_runtime_a_task_fails_and_names_the_setting(
    worker: Bench, fields: dict[str, Any]
) -> None:
    error = await error_of(worker, **fields)
    assert (error.kind, error.retryable) == ("config", False)
    assert "NOETL_WORKER_CONTAINERS" in error.message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "image"),
        ({"image": ""}, "image"),
        ({"image": "a", "command": "sh -c"}, "command"),
        ({"image": "a", "args": [1]}, "args"),
        ({"image": "a", "env": ["N=1"]}, "env"),
        ({"image": "a", "env": [{"value": 1}]}, "env"),
        ({"image": "a", "files": [{"path": "/x"}]}, "files"),
        ({"image": "a", "files": [{"path": "/x", "content": "", "script": {}}]}, "files"),
        ({"image": "a", "resources": {"cpu": 1}}, "resources"),
        ({"image": "a", "backoff_limit": -1}, "backoff_limit"),
        ({"image": "a", "ttl_seconds_after_finished": "x"}, "ttl_seconds_after_finished"),
        ({"image": "a", "restart_policy": "Always"}, "restart_policy"),
        ({"runtime": "x"}, "runtime"),
        ({"job": {"image": "a", "privileged": True}}, "job.privileged"),
    ],
)
async def test_fields_are_checked_before_the_runtime(
    worker: Bench, fields: dict[str, Any], named: str
) -> None:
    error = await error_of(worker, **fields)
    assert error.kind == "validation"
    assert f"'{named}'" in error.message


def test_what_stands_on_the_task_wins_over_what_is_nested() -> None:
    fields = {"runtime": {"image": "a", "backoffLimit": 2}, "job": {"image": "b"}, "image": "c"}
    assert merge_fields({"image": "d", "namespace": "n", "other": 1}, fields) == {
        "image": "c",
        "backoff_limit": 2,
        "namespace": "n",
    }


async def test_a_docker_that_does_not_answer_is_named_with_the_ways_out() -> None:
    settings = {"containers": "docker", "container_images": ("*",)}
    async with bench(docker_host="unix:///nowhere/docker.sock", **settings) as worker:
        error = await error_of(worker, image="alpine:3.20")
    assert (error.kind, error.retryable) == ("config", False)
    assert "Docker, which does not answer at unix:///nowhere/docker.sock" in error.message
    assert "NOETL_WORKER_DOCKER_HOST" in error.message


async def test_a_step_of_this_kind_fails_its_command(worker: Bench) -> None:
    step = "- {step: s, tool: {kind: container, image: 'alpine:3.20'}}"
    (fact,) = [
        item for item in await worker.run(command_of(step)) if isinstance(item, CommandFailed)
    ]
    assert fact.error.kind == "config"
