"""Clients of the claim API who mean harm, or know no better: they cost nobody else anything."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.api import replace_services
from tests.support.http_pools import FRAMES, STEP, World, open_world, stage_of
from tests.support.identities import OTHER, make_caller_of, open_client
from tests.support.inprocess import begin, ended, value
from tests.support.polling import eventually
from tests.support.stranger import Stranger

from noetl_contracts.json_values import DEPTH_MAX
from noetl_contracts.payloads import PayloadRef
from noetl_contracts.spread_table import KEY
from noetl_planner.api.app import create_app
from noetl_planner.api.claims import claims
from noetl_planner.api.http import bodies, connection_protocol, limiters
from noetl_planner.identity.authenticator import Authenticator

GREETED: dict[str, Any] = {"result": {"text": "hi"}, "set": {"n": 1}}
HUGE = 10**30


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def claimed(world: World, name: str = "owner", playbook: str = STEP) -> Any:
    """Begin a run and have its first command."""
    execution_id = await begin(world.opened, playbook)
    claim = await world.stranger(name).claim("edge", wait_s=10)
    assert claim is not None
    assert claim["lease"]["execution_id"] == execution_id
    return claim


async def concluded(world: World, claim: Any, name: str = "owner") -> Any:
    """The owner still ends what it has, and the run ends as if nobody had meddled."""
    code, verdict = await world.stranger(name).end(claim, "complete", **GREETED)
    assert (code, verdict["status"]) == (200, "COMPLETED")
    outcome = await ended(world.opened, claim["lease"]["execution_id"])
    assert outcome.types[-1] == "playbook.completed"
    return outcome


FORGERIES: list[tuple[dict[str, Any], int]] = [
    ({"worker_id": "thief"}, 409),
    ({"attempt": 2}, 409),
    ({"attempt": 2**53}, 409),
    ({"attempt": 2**60}, 400),
    ({"attempt": HUGE}, 400),
    ({"attempt": 0}, 400),
    ({"attempt": -1}, 400),
    ({"command_id": "7"}, 409),
    ({"command_id": "9" * 19}, 409),
    ({"command_id": "9" * 40}, 404),
    ({"command_id": "../1"}, 404),
    ({"execution_id": "7"}, 404),
    ({"execution_id": "9" * 19}, 404),
    ({"execution_id": "-1"}, 400),
    ({"reference": {"uri": "noetl://a/b"}}, 400),
]
VERBS: list[tuple[str, dict[str, Any]]] = [
    ("heartbeat", {}),
    ("release", {}),
    ("complete", {"result": "mine"}),
    ("fail", {"error": {"kind": "validation", "message": "mine"}}),
]


async def test_no_part_of_a_lease_can_be_made_up(world: World) -> None:
    claim = await claimed(world)
    thief = world.stranger("thief")
    # Another run of the same worker is no more its own to speak for under this command.
    other = await claimed(world, "second")
    mixed = ({"execution_id": other["lease"]["execution_id"]}, 409)
    before = await world.events(claim["lease"]["execution_id"])
    for forged, status in [*FORGERIES, mixed]:
        for verb, body in VERBS:
            lease = {**claim["lease"], **forged}
            code, refused = await thief.end({"lease": lease}, verb, **body)
            # What cannot be part of an address leads to no route, which is a refusal too.
            assert code in {status, 404}, (forged, verb, refused)
            assert refused["detail"], (forged, verb)
    assert await world.events(claim["lease"]["execution_id"]) == before
    for name, item in (("owner", claim), ("second", other)):
        told = await concluded(world, item, name)
        assert "command.rejected" not in told.types


async def test_another_tenants_work_is_not_there(world: World) -> None:
    claim = await claimed(world)
    opened = world.opened
    proving = Authenticator(opened.adapters.identities, opened.adapters.clock)
    app = create_app(replace_services(opened.services, authenticator=proving))
    key = await make_caller_of(opened.adapters.identities, "worker", place=OTHER, name="owner")
    async with open_client(app, key) as http:
        spy = Stranger(http, "owner")
        assert await spy.claim("edge") is None
        for verb, body in VERBS:
            code, refused = await spy.end(claim, verb, **body)
            assert (code, refused["code"]) == (404, "not_found")
    await concluded(world, claim)


async def test_requests_that_were_captured_change_nothing_when_they_are_sent_again(
    world: World,
) -> None:
    claim = await claimed(world)
    owner = world.stranger("owner")
    assert (await owner.end(claim, "release"))[0] == 200
    # At once, after the release and under the next attempt, the old words are worth nothing.
    for verb, body in VERBS:
        assert (await owner.end(claim, verb, **body))[0] == 409
    again = await owner.claim("edge", wait_s=10)
    assert again is not None
    for verb, body in VERBS * 3:
        code, refused = await owner.end(claim, verb, **body)
        assert (code, refused["code"], refused["current_attempt"]) == (409, "stale_lease", 2)
    told = await concluded(world, again)
    # Each kind of report is recorded once, however often it comes.
    assert told.types.count("command.rejected") <= 2
    many = await world.events(claim["lease"]["execution_id"])
    for verb, body in VERBS * 2:
        for item in (claim, again):
            assert (await owner.end(item, verb, **body))[0] == 409
    rejected = await world.events(claim["lease"]["execution_id"]) - many
    assert rejected <= 2


async def test_who_claims_and_never_reports_uses_up_attempts_and_no_more(world: World) -> None:
    claim = await claimed(world)
    for _ in range(2):
        await world.lose(claim)
        claim = await world.stranger("owner").claim("edge", wait_s=10)
        assert claim is not None
    await world.lose(claim)
    outcome = await ended(world.opened, claim["lease"]["execution_id"])
    (failed,) = outcome.of("playbook.failed")
    assert failed.error.message
    assert (await world.stranger("owner").end(claim, "complete", **GREETED))[0] == 409


async def test_a_command_is_not_given_back_without_an_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "RELEASES_MAX", 2)
    claim = await claimed(world)
    owner = world.stranger("owner")
    for _ in range(2):
        assert (await owner.end(claim, "release"))[0] == 200
        claim = await owner.claim("edge", wait_s=10)
        assert claim is not None
    code, refused = await owner.end(claim, "release")
    assert (code, refused["code"], bool(refused["hint"])) == (409, "released_too_often", True)
    await concluded(world, claim)


def a_reference(tenant: str) -> dict[str, Any]:
    """A reference as events carry it, to a payload of somebody's that may be there or not."""
    uri = f"noetl://tenant/{tenant}/org/default/payload/sha256/{'a' * 64}"
    return {"uri": uri, "sha256": "a" * 64, "payload_bytes": 1, "media_type": "application/json"}


async def test_a_forged_reference_in_a_result_is_data_like_any_other(world: World) -> None:
    claim = await claimed(world)
    parts = [a_reference("other"), a_reference("default")]
    spread = {"row_count": 1, "payload_bytes": 1, "schema": "", "columns": [], "parts": parts}
    forged = {"rows": {KEY: spread}, "reference": parts[0], "big": [HUGE, -HUGE, 2**64]}
    # Large enough to be kept by reference itself, and small enough to travel.
    for text in ("short", "x" * 3000):
        body = {**forged, "text": text}
        code, verdict = await world.stranger("owner").end(
            claim, "complete", result=body, set={"n": HUGE}
        )
        assert (code, verdict["status"]) == (200, "COMPLETED"), verdict
        execution_id = claim["lease"]["execution_id"]
        outcome = await ended(world.opened, execution_id)
        assert outcome.types[-1] == "playbook.completed"
        raw = (await value(world.opened, outcome, "greet"))["tasks"]["greet_task"]["raw"]
        assert raw == {**body, "big": [str(HUGE), str(-HUGE), str(2**64)]}
        for event in outcome.events:
            reference = getattr(getattr(event.event, "result", None), "reference", None)
            assert not isinstance(reference, PayloadRef) or reference.sha256 != "a" * 64
        claim = await claimed(world)
    await concluded(world, claim)


def nested(levels: int, inside: str = "1") -> bytes:
    return b'{"result":' + b"[" * levels + inside.encode() + b"]" * levels


async def test_bodies_without_an_end_are_refused_with_the_way_out(world: World) -> None:
    claim = await claimed(world)
    lease = dict(claim["lease"])
    path = f"/api/commands/{lease.pop('command_id')}/complete"
    rest = "".join(f',"{name}":{_json(item)}' for name, item in lease.items()).encode() + b"}"
    mib = 1024 * 1024
    for content, status, code in (
        (nested(bodies.DEPTH_MAX) + rest, 422, "nested_too_deep"),
        (nested(bodies.DEPTH_MAX - 2) + rest, 400, "bad_request"),
        (nested(900) + rest, 422, "nested_too_deep"),
        (nested(200_000) + rest, 422, "nested_too_deep"),
        (b"[" * 200_000, 422, "nested_too_deep"),
        (b'{"a":' * 200_000, 422, "nested_too_deep"),
        (b"[]" * 200_000, 400, None),
        (b'{"result":"' + b"x" * (5 * mib) + b'"' + rest, 413, None),
        (b'{"set":{"n":"' + b"x" * (2 * mib) + b'"}' + rest, 413, "payload_too_large"),
        (b'{"result":1e999' + rest, 400, None),
        (b'{"result":"\xff"' + rest, 400, None),
        (b"", 400, None),
    ):
        answer = await world.http.post(
            path, content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, (content[:40], answer.text)
        assert code in {None, answer.json()["code"]}
        assert answer.json()["detail"]
    deepest = b'"' + b"[" * 5_000 + b'"'
    answer = await world.http.post(
        path,
        content=nested(DEPTH_MAX - 2, deepest.decode()) + rest,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 200, answer.text
    told = await ended(world.opened, lease["execution_id"])
    assert told.types[-1] in {"playbook.completed", "playbook.failed"}


def _json(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


async def test_a_frame_is_ended_by_its_own_lease_and_with_numbers_that_fit(world: World) -> None:
    execution_id = await begin(world.opened, FRAMES)
    stage = await stage_of(world, execution_id)
    item, two = world.stranger("one"), world.stranger("two")
    first = (await item.claim_frame(stage, wait_s=10))["claim"]
    second = (await two.claim_frame(stage, wait_s=10))["claim"]
    before = await world.events(execution_id)
    swapped = {**first, "lease": second["lease"]}
    stolen = {**second, "lease": {**second["lease"], "worker_id": "one"}}
    output = [0] * 4
    for claim, who in ((swapped, two), (stolen, item)):
        code, _ = await who.end_frame(claim, "commit", status="COMMITTED", output=output)
        assert code == 409
    error = {"kind": "timeout", "message": "gave up"}
    for wrong in (
        {"rows_failed": HUGE},
        {"rows_left": HUGE},
        {"rows_left": -1},
        {"metrics": {"n": HUGE}},
        {"metrics": {str(n): n for n in range(100)}},
        {"metrics": {"x" * 1000: 1}},
    ):
        code, refused = await item.end_frame(first, "commit", status="FAILED", error=error, **wrong)
        assert code == 400, (wrong, refused)
    assert await world.events(execution_id) == before
    for claim, who in ((first, item), (second, two)):
        rows = claim["frame"]["rows"]
        code, _ = await who.end_frame(claim, "commit", status="COMMITTED", output=rows)
        assert code == 200
    last = (await item.claim_frame(stage, wait_s=10))["claim"]
    rows = last["frame"]["rows"]
    assert (await item.end_frame(last, "commit", status="COMMITTED", output=rows))[0] == 200
    outcome = await ended(world.opened, execution_id)
    assert (await value(world.opened, outcome, "total"))["tasks"]["total_task"]["raw"] == [
        *range(10)
    ]


async def test_a_flood_of_claims_waits_for_itself_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiters, "WAITING_MAX", 20)
    claim = await claimed(world)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=world.http.base_url, timeout=30, limits=limits, trust_env=False
    ) as http:
        path = "/api/commands/claim"

        async def ask(name: str) -> httpx.Response:
            body = {"worker_id": name, "pool": "edge", "wait_s": 5}
            return await http.post(path, json=body)

        flood = [asyncio.create_task(ask("greedy")) for _ in range(40)]
        flood += [asyncio.create_task(ask(f"many-{number}")) for number in range(60)]

        async def is_full() -> bool:
            return sum(task.done() for task in flood) >= 80

        await eventually(is_full, timeout_s=60)
        # Others are served meanwhile: another pool, whoever follows, and whoever reports.
        assert await world.stranger().claim("other") is None
        code, verdict = await world.stranger("owner").end(claim, "complete", **GREETED)
        assert (code, verdict["status"]) == (200, "COMPLETED")
        refused = [task.result() for task in flood if task.done()]
        assert {item.status_code for item in refused} == {429}
        assert {item.json()["code"] for item in refused} == {"too_many_claims"}
        assert all(item.headers["Retry-After"] and item.json()["hint"] for item in refused)
        # Whoever waits gets what comes, once, and then there is room again.
        second = await begin(world.opened, STEP)
        answers = [task.result() for task in flood[: len(flood)] if await _ended(task)]
        claims = [answer.json()["claim"] for answer in answers if answer.status_code == 200]
        (found,) = [item for item in claims if item is not None]
        assert found["lease"]["execution_id"] == second
    told = await concluded(world, found, found["lease"]["worker_id"])
    assert told.types.count("command.rejected") == 0
    assert await world.stranger().claim("edge") is None


async def _ended(task: asyncio.Task[httpx.Response]) -> bool:
    await task
    return True


async def test_who_dribbles_is_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.3)
    monkeypatch.setattr(connection_protocol, "HEAD_S", 0.3)
    claim = await claimed(world)
    lines = [await dribble(world, *parts) for parts in DRIBBLES]
    for reader, writer in lines:
        said = await asyncio.wait_for(reader.read(), 30)
        assert said == b"" or (b"408" in said.split(b"\r\n")[0] and b"body_too_slow" in said)
        writer.close()
    await concluded(world, claim)


HEAD = b"POST /api/commands/claim HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
# Nothing at all; half a head; half a body; half a head after a whole request.
DRIBBLES: tuple[tuple[bytes, ...], ...] = (
    (b"",),
    (HEAD,),
    (HEAD + b"Content-Length: 100\r\n\r\n", b'{"worker'),
    (HEAD + b"Content-Length: 2\r\n\r\n{}", HEAD),
)


async def dribble(world: World, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send what never becomes a whole request."""
    url = world.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for number, part in enumerate(parts):
        writer.write(part)
        await writer.drain()
        if number + 1 < len(parts) and b"\r\n\r\n{" in part:
            # The answer to the whole request.
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            size = next(
                int(line.partition(b":")[2])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(size)
    return reader, writer
