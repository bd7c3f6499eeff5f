"""Webhooks over HTTP: whom they trust, what they start, and how often."""

import asyncio
import time
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld

from noetl_contracts import codec
from noetl_contracts.requests import facts, webhooks
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.webhooks import WebhookCall

Api = AsyncTestClient[Litestar]
SECRET = "a secret that nobody guesses"  # noqa: S105 - made for this test
ADDRESS = "/api/webhooks/orders"


def signed(
    body: bytes,
    *,
    secret: str = SECRET,
    at: float | None = None,
    name: str = "orders",
    **headers: str,
) -> dict[str, str]:
    timestamp = str(int(time.time() if at is None else at))
    return {
        "Content-Type": "application/json",
        "X-Noetl-Timestamp": timestamp,
        "X-Noetl-Signature": webhooks.sign_call(
            secret, WebhookCall(name=name, query="", timestamp=timestamp, body=body)
        ),
        **headers,
    }


def asked(world: ApiWorld) -> list[ExecutionRequested]:
    return [
        fact
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]


@pytest.fixture
async def hooked(api: Api) -> Api:
    """An API with a playbook, a secret, and a signed webhook."""
    text = {"Content-Type": "text/yaml"}
    assert (await api.post("/api/catalog/register", content=PLAYBOOK, headers=text)).is_success
    credential = {"name": "shop", "type": "generic", "data": {"secret": SECRET}}
    assert (await api.post("/api/credentials", json=credential)).is_success
    inputs = {
        "who": "{{ body.customer.name }}",
        "kind": "{{ headers['x-kind'] | default('none') }}",
    }
    answer = await api.put(
        ADDRESS,
        json={"path": "demo/hello", "credential": "shop", "inputs": inputs, "body_bytes_max": 100},
    )
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return api


BODY = b'{"customer": {"name": "Ann"}}'


async def test_a_signed_call_starts_the_playbook_with_what_the_mapping_says(
    hooked: Api, world: ApiWorld
) -> None:
    answer = await hooked.post(ADDRESS, content=BODY, headers=signed(BODY, **{"X-Kind": "new"}))
    assert answer.status_code == 202, answer.text
    assert answer.json()["execution_id"].isdigit()
    (fact,) = asked(world)
    assert fact.workload == {"who": "Ann", "kind": "new"}
    assert (fact.path, fact.requested_by) == ("demo/hello", "webhook orders")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"X-Noetl-Signature": "v2=00"}, "does not fit"),
        ({"X-Noetl-Signature": "v2=" + "é".encode().decode("latin-1")}, "does not fit"),
        ({"X-Noetl-Timestamp": "12"}, "does not fit"),
        ({"X-Noetl-Timestamp": "soon"}, "not a number"),
        ({"X-Noetl-Timestamp": "9" * 40}, "not a number"),
    ],
)
async def test_a_changed_call_is_refused(
    hooked: Api, world: ApiWorld, change: dict[str, str], says: str
) -> None:
    headers = {name: value.encode("latin-1") for name, value in {**signed(BODY), **change}.items()}
    answer = await hooked.post(ADDRESS, content=BODY, headers=headers)  # type: ignore[arg-type]  # bytes pass as they are
    assert (answer.status_code, answer.json()["code"]) == (401, "signature_refused")
    assert says in answer.text
    assert asked(world) == []


async def test_another_body_another_secret_and_no_signature_are_refused(
    hooked: Api, world: ApiWorld
) -> None:
    for headers in (signed(b"{}"), signed(BODY, secret="guess"), {}):  # noqa: S106 - a wrong one
        assert (await hooked.post(ADDRESS, content=BODY, headers=headers)).status_code == 401
    assert asked(world) == []


@pytest.mark.parametrize("away_s", [-webhooks.WINDOW_S - 5, webhooks.WINDOW_S + 5])
async def test_an_old_call_and_one_from_the_future_are_refused(
    hooked: Api, world: ApiWorld, away_s: float
) -> None:
    headers = signed(BODY, at=time.time() + away_s)
    answer = await hooked.post(ADDRESS, content=BODY, headers=headers)
    assert answer.status_code == 401
    assert asked(world) == []


async def test_a_replayed_call_starts_nothing_more_whatever_its_own_key_says(
    hooked: Api, world: ApiWorld
) -> None:
    headers = signed(BODY)
    first = (await hooked.post(ADDRESS, content=BODY, headers=headers)).json()
    answers = await asyncio.gather(
        *[
            hooked.post(ADDRESS, content=BODY, headers={**headers, "Idempotency-Key": f"k{n}"})
            for n in range(8)
        ]
    )
    assert {answer.json()["execution_id"] for answer in answers} == {first["execution_id"]}
    assert all(answer.json()["deduplicated"] for answer in answers)
    assert len(asked(world)) == 1


async def test_what_is_too_large_no_json_or_does_not_fit_is_refused(
    hooked: Api, world: ApiWorld
) -> None:
    for body, status in ((b"[" + b"1," * 100 + b"1]", 413), (b"{", 400), (b"{}", 422)):
        answer = await hooked.post(ADDRESS, content=body, headers=signed(body))
        assert answer.status_code == status, answer.text
    assert asked(world) == []


async def test_an_unknown_or_disabled_webhook_is_not_found(hooked: Api) -> None:
    unknown = await hooked.post("/api/webhooks/order", content=BODY, headers=signed(BODY))
    assert unknown.status_code == 404
    assert "orders" not in unknown.text
    body = {"path": "demo/hello", "credential": "shop", "enabled": False}
    await hooked.put(ADDRESS, json=body)
    assert (await hooked.post(ADDRESS, content=BODY, headers=signed(BODY))).status_code == 404


async def test_unsigned_webhooks_exist_only_when_asked_for(hooked: Api, world: ApiWorld) -> None:
    for wrong in ({}, {"credential": "shop", "unsigned": True}):
        answer = await hooked.put("/api/webhooks/open", json={"path": "demo/hello", **wrong})
        assert answer.status_code == 400
    await hooked.put("/api/webhooks/open", json={"path": "demo/hello", "unsigned": True})
    for _ in range(2):
        answer = await hooked.post(
            "/api/webhooks/open", content=b'{"who": "me"}', headers={"Idempotency-Key": "one"}
        )
        assert answer.status_code == 202, answer.text
    (fact,) = asked(world)
    assert fact.workload == {"who": "me"}


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"path": "demo/helo"}, 404, "demo/helo"),
        ({"credential": "nobody"}, 409, "nobody"),
        ({"inputs": {"a": "{{ body. }}"}}, 422, "template"),
        ({"inputs": {"who": "{{ bdy.id }}"}}, 422, "'bdy' is nothing of a call"),
        ({"inputs": {"who": ["{{ message_id }}"]}}, 422, "'message_id' is nothing of a call"),
        ({"body_bytes_max": 10**9}, 400, "body_bytes_max"),
    ],
)
async def test_wrong_webhooks_are_refused(
    hooked: Api, change: dict[str, Any], status: int, says: str
) -> None:
    body = {"path": "demo/hello", "credential": "shop", **change}
    answer = await hooked.put("/api/webhooks/other", json=body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


async def test_webhooks_are_shown_and_removed_without_their_secret(hooked: Api) -> None:
    listed = await hooked.get("/api/webhooks")
    assert SECRET not in listed.text
    (item,) = codec.decode_json(listed.content)["webhooks"]
    assert (item["name"], item["credential"], item["unsigned"]) == ("orders", "shop", False)
    assert (await hooked.get(ADDRESS)).json() == item
    assert (await hooked.delete(ADDRESS)).json()["removed"]
    assert (await hooked.get(ADDRESS)).status_code == 404


async def test_a_webhook_with_a_credential_that_does_not_exist_is_told_so(hooked: Api) -> None:
    body = {"path": "demo/hello", "credential": "missing"}
    answer = await hooked.put("/api/webhooks/other", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "secret_missing")
    assert problem["detail"] == "there is no credential 'missing'"
