"""The fixture as a program: faults on the wire, limits across processes, a ledger that survives."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.acceptance.pft_driver import fixture_server

from noetl_pft.workload import model

PAGE = "/api/v1/patient/conditions?patientId=1&page=1"


class Client:
    """Asks one fixture."""

    def __init__(self, server: dict[str, Any], http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    async def get(self, path: str = PAGE, **headers: str) -> tuple[int, Any, dict[str, str]]:
        async with self.http.get(self.server["api"] + path, headers=headers) as answer:
            text = await answer.text()
            is_json = text.startswith(("{", "["))
            return answer.status, json.loads(text) if is_json else text, dict(answer.headers)

    async def control(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        url = self.server["control"] + path
        async with self.http.request(method, url, json=body) as answer:
            return answer.status, await answer.json()

    async def rules(self, *rules: dict[str, Any]) -> None:
        status, _ = await self.control("PUT", "/faults", list(rules))
        assert status == 200

    async def summary(self) -> dict[str, Any]:
        """Wait until every request has its end: it is recorded after the last byte has gone."""
        async with asyncio.timeout(60):
            while True:
                _, summary = await self.control("GET", "/ledger/summary")
                assert isinstance(summary, dict)
                if not summary["unended"]:
                    return summary

    def ledger(self, run: str) -> list[dict[str, Any]]:
        paths = (Path(self.server["ledger_dir"]) / run).glob("*.ndjson")
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with fixture_server(tmp_path_factory.mktemp("ledger"), "--processes", "2") as server:
        yield server


@pytest.fixture
async def client(server: dict[str, Any], request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as http:
        # Otherwise aiohttp itself asks again when a connection breaks before the first byte.
        http._retry_connection = False
        client = Client(server, http)
        await client.control("PUT", "/faults", [])
        await client.control("PUT", "/profile", {"name": "plain"})
        run = "".join(c if c.isalnum() else "-" for c in request.node.name)
        assert (await client.control("POST", "/reset", {"run": run}))[0] == 200
        yield client


async def test_an_answer_is_in_the_ledger_with_its_marks(client: Client) -> None:
    marks = {"X-PFT-Run": "n", "X-PFT-Execution": "7", "X-PFT-Frame": "8", "X-PFT-Attempt": "1"}
    status, body, headers = await client.get(**marks, **{"Idempotency-Key": 'k"'})
    assert (status, body) == (200, model.build_page_body(1, "conditions", 1))
    asked, ended = client.ledger((await client.summary())["run"])
    assert asked["units"] == ["conditions/1/1"]
    assert asked["headers"] == marks | {"Idempotency-Key": 'k"'}
    assert headers["X-PFT-Seq"] == f"{asked['process']}.{asked['number']}"
    assert (ended["outcome"], ended["status"], ended["number"]) == ("complete", 200, 1)


async def test_health_is_free_and_everything_else_is_recorded(client: Client) -> None:
    assert (await client.get("/health"))[:2] == (200, {"status": "ok"})
    assert (await client.get("/api/v1/patient/conditions?patientId=x"))[0] == 400
    assert (await client.get("/nowhere"))[0] == 404
    async with client.http.post(client.server["api"] + PAGE, data=b"x") as answer:
        assert answer.status == 405
    assert (await client.summary())["outcomes"] == {"refused_input": 3}


async def test_the_streamed_ledger_ends_with_its_count(client: Client) -> None:
    await client.get()
    await client.summary()
    async with client.http.get(client.server["control"] + "/ledger") as answer:
        lines = [json.loads(line) async for line in answer.content]
    assert [line.get("at") for line in lines] == ["asked", "ended", None]
    assert lines[-1] == {"count": 2}


async def test_the_shared_limit_is_exact_across_processes(client: Client) -> None:
    await client.control("PUT", "/profile", {"limit": 20, "limit_scope": "shared"})
    statuses = [status for status, _, _ in await asyncio.gather(*(client.get() for _ in range(60)))]
    assert statuses.count(200) == 20
    summary = await client.summary()
    assert summary["outcomes"] == {"complete": 20, "limited": 40}
    assert len({line["process"] for line in client.ledger(summary["run"])}) == 2


async def test_pipelined_requests_are_answered_in_order(client: Client) -> None:
    host, port = client.server["api"].removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    paths = [f"/api/v1/mds/assessment/MDS-1-p1-0-{k:02d}" for k in range(400)]
    writer.write(b"".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths))
    for path in paths:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(size))
        assert body["assessmentId"] == path.rpartition("/")[2]
    writer.close()


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("reset_before", aiohttp.ClientError),
        ("reset_mid", aiohttp.ClientError),
        ("truncate", aiohttp.ClientPayloadError),
        ({"hang": 0.1}, aiohttp.ServerDisconnectedError),
    ],
)
async def test_a_broken_connection_breaks_and_is_recorded(
    client: Client, action: Any, error: type[Exception]
) -> None:
    await client.rules({"id": "f", "when": {"first": 1}, "action": action})
    with pytest.raises(error):
        await client.get()
    assert (await client.get())[0] == 200
    assert (await client.summary())["outcomes"] == {"complete": 1, "spoiled:f": 1}


@pytest.mark.parametrize(
    ("action", "status", "outcome"),
    [
        ({"status": 503}, 503, "spoiled:f"),
        ("garbage", 200, "spoiled:f"),
        ("cut", 200, "spoiled:f"),
        ("swap", 200, "spoiled:f"),
        ({"slow": 0.05}, 200, "complete"),
        ({"drip": 0.1}, 200, "complete"),
    ],
)
async def test_a_spoilt_answer_is_recorded_as_such(
    client: Client, action: Any, status: int, outcome: str
) -> None:
    await client.rules({"id": "f", "action": action})
    found, body, _ = await client.get()
    assert found == status
    assert (body == model.build_page_body(1, "conditions", 1)) is (outcome == "complete")
    assert (await client.summary())["outcomes"] == {outcome: 1}


async def test_a_closed_port_refuses_and_opens_again(client: Client) -> None:
    await client.rules({"id": "f", "when": {"first": 1}, "action": {"refuse": 0.5}})
    with pytest.raises(aiohttp.ClientError):
        await client.get()
    has_refused = False
    async with asyncio.timeout(60):
        while True:
            try:
                status, _, _ = await client.get()
            except aiohttp.ClientConnectorError:
                has_refused = True
            except aiohttp.ClientError:
                await asyncio.sleep(0)
            else:
                if has_refused:
                    break
    assert status == 200


async def test_a_client_that_leaves_first_is_recorded_as_aborted(client: Client) -> None:
    await client.rules({"id": "f", "action": {"slow": 30}})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.get()
    assert (await client.summary())["outcomes"] == {"aborted": 1}


async def test_a_meaningless_order_is_refused_and_changes_nothing(client: Client) -> None:
    for path, body in (
        ("/faults", [{"id": "x"}]),
        ("/profile", {"name": "fast"}),
        ("/profile", {"latency": "soon"}),
    ):
        status, answer = await client.control("PUT", path, body)
        assert status == 400
        assert answer["error"]
    for run in ("../x", ""):
        assert (await client.control("POST", "/reset", {"run": run}))[0] == 400
    assert (await client.get())[0] == 200


async def test_a_used_ledger_name_is_refused(client: Client) -> None:
    run = (await client.summary())["run"]
    status, answer = await client.control("POST", "/reset", {"run": run})
    assert status == 400
    assert run in answer["error"]


async def test_a_killed_fixture_loses_no_record(tmp_path: Path) -> None:
    with fixture_server(tmp_path, "--run", "killed") as server:
        async with aiohttp.ClientSession() as http:
            client = Client(server, http)
            for _ in range(20):
                await client.get()
            await client.summary()
            os.kill(server["pid"], signal.SIGKILL)
            lines = client.ledger("killed")
    assert [line["at"] for line in lines] == ["asked", "ended"] * 20
    assert (tmp_path / "killed" / "1.count").read_bytes() == (20).to_bytes(8, "little") * 2
