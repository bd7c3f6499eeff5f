"""An image of a registry that asks who pulls it, fetched by a real Docker for a task."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs
from tests.support import docker_containers
from tests.support.containers import run_docker
from tests.support.docker_containers import IMAGE, shell_of
from tests.support.private_registry import PASSWORD, USER, PrivateRegistry, private_registry
from tests.support.working import Bench, bench

from noetl_worker.tools.calls.call import Call

LOGIN = {"type": "basic", "username": USER, "password": PASSWORD}


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[PrivateRegistry]:
    async with private_registry(IMAGE, tmp_path) as running:
        yield running
        with contextlib.suppress(AssertionError):
            await asyncio.to_thread(run_docker, "image", "rm", image_of(running))


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    settings = {**docker_containers.SETTINGS, "container_images": ("127.0.0.1:*/*",)}
    async with bench(**settings, python_processes_max=1) as found:
        yield found


def image_of(registry: PrivateRegistry) -> str:
    return f"127.0.0.1:{registry.port}/team/tool:1"


def call_of(registry: PrivateRegistry, auth: dict[str, str] | None) -> Call:
    return structs.replace(shell_of("echo '[4]'", image=image_of(registry)), auth=auth)


async def test_a_credential_of_the_task_opens_the_registry(
    worker: Bench, registry: PrivateRegistry
) -> None:
    outcome = await worker.tools.run(call_of(registry, LOGIN))
    assert outcome.error is None, outcome.error
    assert outcome.data["result"] == [4]
    assert registry.admitted > 0


async def test_without_one_the_refusal_says_where_it_goes(
    worker: Bench, registry: PrivateRegistry
) -> None:
    error = (await worker.tools.run(call_of(registry, None))).error
    assert error is not None
    assert (error.kind, error.retryable) == ("container_start", False)
    assert "'auth'" in error.message
    assert registry.refused > 0


async def test_a_wrong_password_is_an_error_of_the_credential_and_stays_unseen(
    worker: Bench, registry: PrivateRegistry
) -> None:
    wrong = {**LOGIN, "password": "not-this-one"}
    error = (await worker.tools.run(call_of(registry, wrong))).error
    assert error is not None
    assert error.kind == "auth"
    assert f"127.0.0.1:{registry.port}" in error.message
    assert USER in error.message
    assert "not-this-one" not in error.message
