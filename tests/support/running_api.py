"""A planner's API in a thread of its own, with a hand on its event loop."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.api import ApiWorld

from noetl_contracts.ids import ExecutionId
from noetl_planner.api import server
from noetl_planner.api.app import create_app

PATIENCE_S = 60.0


@dataclass
class RunningApi:
    """A running API; `call` plays planner and projector inside its event loop."""

    world: ApiWorld
    loop: asyncio.AbstractEventLoop | None = None
    port: int = 0
    started: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None
    thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, work: Callable[..., Any], *args: Any) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work(*args), self.loop).result(PATIENCE_S)

    def append(self, execution_id: ExecutionId, events: list[Any]) -> None:
        self.call(self.world.append, execution_id, events)

    def start(self, port: int = 0) -> None:
        self.started.clear()
        self.thread = threading.Thread(target=self._main, args=(port,))
        self.thread.start()
        assert self.started.wait(PATIENCE_S), self.failure

    def stop(self) -> None:
        assert self.loop is not None
        assert self.thread is not None
        self.loop.call_soon_threadsafe(self.world.stop.set)
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()

    def _main(self, port: int) -> None:
        try:
            asyncio.run(self._serve(port))
        except BaseException as failure:  # the test's thread shows it
            self.failure = failure
            raise

    async def _serve(self, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.world.stop = asyncio.Event()
        await server.serve_api(
            create_app(self.world.services()),
            host="127.0.0.1",
            port=port,
            stop=self.world.stop,
            started=self._note,
        )

    def _note(self, port: int) -> None:
        self.port = port
        self.started.set()


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Noetl = Callable[..., Outcome]
