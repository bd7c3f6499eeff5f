"""A container's end is told when it has ended, however often Docker gives up waiting for it."""

from typing import Any, cast

import pytest

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.container import docker_runtime
from noetl_worker.tools.container.docker_api import DockerApi
from noetl_worker.tools.container.docker_runtime import DockerRuntime
from noetl_worker.tools.container.runtime import StartedContainer, build_unreachable_failure

STARTED = StartedContainer(container_id="c", name="noetl-c")


class DockerAnswers:
    """Docker, which answers a wait before the end: `running` times, or not at all."""

    def __init__(self, *, running: int, is_away: bool = False) -> None:
        self.running, self.is_away, self.waits = running, is_away, 0

    async def send_request(self, method: str, path: str, **_: Any) -> Any:
        if self.is_away:
            self.waits += 1
            raise build_unreachable_failure("away")
        if path.endswith("/wait"):
            self.waits += 1
            return {"StatusCode": 0}
        is_running = self.waits <= self.running
        return {"State": {"Status": "running" if is_running else "exited", "ExitCode": 3}}


async def wait_for_end(answers: DockerAnswers) -> int:
    runtime = DockerRuntime(cast("DockerApi", answers), network="bridge")
    return (await runtime.wait_for_end(STARTED)).exit_code


async def test_a_container_that_outlives_many_waits_has_not_ended() -> None:
    answers = DockerAnswers(running=50)
    assert await wait_for_end(answers) == 3
    assert answers.waits == 51


async def test_a_docker_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_runtime, "_WAIT_PAUSE_S", 0.0)
    answers = DockerAnswers(running=0, is_away=True)
    with pytest.raises(ToolFailure, match="away"):
        await wait_for_end(answers)
    assert answers.waits == docker_runtime._WAIT_TRIES_MAX + 1
