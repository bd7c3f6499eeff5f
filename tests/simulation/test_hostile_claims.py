"""Hostile clients of the claim API: each is answered, and what others have claimed stays theirs."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simulation.test_claims import (
    FRAMES,
    STEP,
    World,
    finished,
    opened_world,
    stage_of,
)
from tests.support.inprocess import begin
from tests.support.spoiling import HOSTILE, spoiled, twisted

from noetl_contracts import codec

PATIENCE_S = 60.0
HUGE_BYTES = 5 * 1024 * 1024
DEEP = b"[" * 100_000
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-0", "1" * 400, "0x10", "1_000")


class Site:
    """The world in a thread of its own, and two claims of an honest worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self.loop: asyncio.AbstractEventLoop
        self.world: World
        self.stop: asyncio.Event

    def open(self) -> None:
        self._thread.start()
        assert self._is_open.wait(PATIENCE_S)
        self.http = httpx.Client(
            base_url=self.world.http.base_url, timeout=PATIENCE_S, trust_env=False
        )
        self.step, self.frames = self.call(self._begun())
        self.claim = self.post("/api/commands/claim", worker_id="honest", pool="edge", wait_s=10)[1]
        stage = self.call(stage_of(self.world, self.frames))
        path = f"/api/stages/{stage}/frames/claim"
        self.frame_claims = [self.post(path, worker_id="honest", wait_s=10)[1] for _ in range(2)]
        self.stage = stage

    async def _begun(self) -> tuple[str, str]:
        step = await begin(self.world.opened, STEP.replace("greet", "hail"), who="you")
        return str(step), str(await begin(self.world.opened, FRAMES))

    async def _live(self) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        async with opened_world(self._folder) as self.world:
            self._is_open.set()
            await self.stop.wait()

    def close(self) -> None:
        self.http.close()
        self.loop.call_soon_threadsafe(self.stop.set)
        self._thread.join(PATIENCE_S)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        answer = self.http.post(path, json=body)
        return answer.status_code, answer.json()

    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """One request a route, as a thief would make it who knows everything."""
        asker = {"worker_id": "thief", "wait_s": 0, "locality": {"zone": "z", "node": "n"}}
        lease = {**self.claim["claim"]["lease"], "worker_id": "thief"}
        command = lease.pop("command_id")
        held = self.frame_claims[0]["claim"]
        frame_lease = {**held["lease"], "worker_id": "thief"}
        frame = held["frame"]["frame_id"]
        error = {"kind": "timeout", "message": "late", "code": "X", "retryable": True}
        commit = {"status": "COMMITTED", "output": [1], "rows_left": 0, "metrics": {"n": 1}}
        return [
            ("/api/commands/claim", {**asker, "pool": "none"}),
            (f"/api/commands/{command}/heartbeat", lease),
            (f"/api/commands/{command}/complete", {**lease, "result": {"a": 1}, "set": {"k": 1}}),
            (f"/api/commands/{command}/fail", {**lease, "error": error}),
            (f"/api/commands/{command}/release", lease),
            (f"/api/stages/{command}/frames/claim", {**asker, "execution_id": self.frames}),
            (f"/api/frames/{frame}/heartbeat", frame_lease),
            (f"/api/frames/{frame}/commit", {**frame_lease, **commit}),
            (f"/api/frames/{frame}/commit", {**frame_lease, "status": "FAILED", "error": error}),
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    opened = Site(tmp_path_factory.mktemp("claims"))
    opened.open()
    yield opened
    opened.close()


def ask(site: Site, path: str, data: bytes, kind: str = "application/json") -> httpx.Response:
    """Send a body; whatever it is, the answer is a refusal with a reason."""
    answer = site.http.post(path, content=data, headers={"Content-Type": kind})
    told = answer.json()
    assert answer.status_code < 500, (path, data[:500], told)
    if not answer.is_success:
        assert told["detail"], (path, data[:500])
        assert "Traceback" not in answer.text
    return answer


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_whatever_a_thief_sends_is_answered(site: Site, draw: st.DataObject) -> None:
    path, body = draw.draw(st.sampled_from(site.requests()))
    whole = codec.encode(body)
    data = draw.draw(st.one_of(twisted(whole), spoiled(whole), st.just(whole)))
    if draw.draw(st.booleans()):
        number = draw.draw(st.sampled_from(NUMBERS)).encode()
        data = data.replace(b"1", number, 1)
    kind = draw.draw(st.sampled_from(["application/json", "application/json", "text/plain", ""]))
    ask(site, path, data, kind)


@pytest.mark.parametrize("name", ["command", "frame", "stage"])
def test_whatever_an_address_names_is_answered(site: Site, name: str) -> None:
    lease = site.frame_claims[0]["claim"]["lease"]
    own = {key: value for key, value in lease.items() if key != "command_id"}
    for hostile in HOSTILE:
        text = httpx.URL("http://x").copy_with(path=f"/{json.dumps(hostile)[:300]}").raw_path
        place = text.decode().strip("/") or "%20"
        match name:
            case "command":
                ask(site, f"/api/commands/{place}/complete", codec.encode(own))
            case "frame":
                ask(site, f"/api/frames/{place}/heartbeat", codec.encode(lease))
            case _:
                asker = codec.encode({"worker_id": "thief"})
                ask(site, f"/api/stages/{place}/frames/claim", asker)


def test_bodies_that_are_too_large_or_too_deep_are_refused(site: Site) -> None:
    for path, body in site.requests():
        for data in (DEEP, codec.encode({**body, "result": "x" * HUGE_BYTES})):
            assert ask(site, path, data).status_code in {400, 413}, path


def test_after_all_that_the_honest_worker_ends_what_it_claimed_once(site: Site) -> None:
    """Its commits are sent several times at once: one of each counts."""
    lease = dict(site.claim["claim"]["lease"])
    command = lease.pop("command_id")

    def complete(_: int) -> int:
        path = f"/api/commands/{command}/complete"
        return site.post(path, **lease, result={"text": "hi"}, set={"n": 1})[0]

    with ThreadPoolExecutor() as threads:
        codes = list(threads.map(complete, range(4)))
    assert 200 in codes
    assert set(codes) <= {200, 409}
    told = site.call(finished(site.world, site.step))
    assert told.types[-1] == "playbook.completed"
    assert [one.command_id for one in told.of("command.completed")].count(command) == 1
    assert {one.worker_id for one in told.of("command.started")} & {"thief"} == set()
    for held in site.frame_claims:
        claim = held["claim"]
        output = [row * 2 for row in claim["frame"]["rows"]]
        path = f"/api/frames/{claim['frame']['frame_id']}/commit"
        code, verdict = site.post(path, **claim["lease"], status="COMMITTED", output=output)
        assert (code, verdict["status"]) == (200, "COMPLETED")
