"""A signed call starts what it was signed for, once."""

import hashlib
import hmac
import time
from collections.abc import AsyncIterator

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld

from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_planner.api.app import create_app

Api = AsyncTestClient[Litestar]
SECRET = "a secret that nobody guesses"  # noqa: S105 - made for this test
BODY = b'{"who": "Ann"}'


@pytest.fixture
async def world() -> ApiWorld:
    return ApiWorld()


@pytest.fixture
async def api(world: ApiWorld) -> AsyncIterator[Api]:
    """An API with two playbooks, and a webhook for each that one secret signs."""
    async with AsyncTestClient(create_app(world.services())) as client:
        for text in (PLAYBOOK, PLAYBOOK.replace("demo/hello", "demo/pay")):
            answer = await client.post(
                "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
            )
            assert answer.is_success, answer.text
        await keep_credential(client, "shop")
        for name, path in (("orders", "demo/hello"), ("payments", "demo/pay")):
            inputs = {"who": "{{ body.who }} {{ query.get('a', '') }}"}
            body = {"path": path, "credential": "shop", "inputs": inputs}
            assert (await client.put(f"/api/webhooks/{name}", json=body)).is_success
        yield client


async def keep_credential(api: Api, name: str, **fields: str) -> None:
    body = {"name": name, "type": "generic", "data": {"secret": SECRET, **fields}}
    assert (await api.post("/api/credentials", json=body)).is_success


def sign(
    *parts: str, name: str = "orders", query: str = "", method: str = "POST", body: bytes = BODY
) -> dict[str, str]:
    """Sign as the page of the docs says, without the code that checks it."""
    now = parts[0] if parts else str(int(time.time()))
    text = f"{method}\n{name}\n{query}\n{now}\n".encode() + body
    digest = hmac.new(SECRET.encode(), text, hashlib.sha256).hexdigest()
    return {"X-Noetl-Timestamp": now, "X-Noetl-Signature": f"v2={digest}"}


def sign_as_before(body: bytes = BODY) -> dict[str, str]:
    now = str(int(time.time()))
    digest = hmac.new(SECRET.encode(), now.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Noetl-Timestamp": now, "X-Noetl-Signature": f"sha256={digest}"}


def list_starts(world: ApiWorld) -> list[ExecutionRequested]:
    return [
        fact
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]


async def test_a_call_as_the_page_says_starts_its_playbook(api: Api, world: ApiWorld) -> None:
    headers = sign(query="a=1&b=%20")
    answer = await api.post("/api/webhooks/orders?a=1&b=%20", content=BODY, headers=headers)
    assert answer.status_code == 202, answer.text
    (started,) = list_starts(world)
    assert (started.path, started.workload) == ("demo/hello", {"who": "Ann 1"})


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("/api/webhooks/payments", sign()),
        ("/api/webhooks/orders?a=2", sign()),
        ("/api/webhooks/orders?a=2", sign(query="a=1")),
        ("/api/webhooks/orders?", sign(query="a=1")),
        ("/api/webhooks/orders", sign(query="a=1")),
        ("/api/webhooks/orders?a=1&a=2", sign(query="a=2&a=1")),
        ("/api/webhooks/orders", sign(method="PUT")),
        ("/api/webhooks/orders", sign(body=b"{}")),
        ("/api/webhooks/orders", {**sign(), "X-Noetl-Timestamp": "1700000000"}),
        ("/api/webhooks/orders", sign("1700000000")),
        ("/api/webhooks/orders", sign_as_before()),
        ("/api/webhooks/payments", sign_as_before()),
    ],
)
async def test_a_call_that_was_signed_for_something_else_is_refused(
    api: Api, world: ApiWorld, address: str, headers: dict[str, str]
) -> None:
    answer = await api.post(address, content=BODY, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "signature_refused")
    assert list_starts(world) == []


async def test_parts_of_a_call_cannot_change_places(api: Api, world: ApiWorld) -> None:
    """A name or query that ends where the next part begins would sign another call."""
    now = str(int(time.time()))
    headers = sign(now, query=f"a\n{now}\n")
    for address in ("/api/webhooks/orders?a", f"/api/webhooks/orders?a%0A{now}%0A"):
        answer = await api.post(address, content=f"{now}\n".encode() + BODY, headers=headers)
        assert answer.status_code == 401
    assert list_starts(world) == []


async def test_a_replay_is_answered_with_the_first_execution(api: Api, world: ApiWorld) -> None:
    headers = sign()
    first = await api.post("/api/webhooks/orders", content=BODY, headers=headers)
    for key in ("a", "b"):
        again = await api.post(
            "/api/webhooks/orders", content=BODY, headers={**headers, "Idempotency-Key": key}
        )
        assert again.json()["execution_id"] == first.json()["execution_id"]
        assert again.json()["deduplicated"]
    assert len(list_starts(world)) == 1


async def test_an_older_signature_counts_only_where_the_webhook_says_so(
    api: Api, world: ApiWorld
) -> None:
    for name, path in (("orders", "demo/hello"), ("payments", "demo/pay")):
        body = {"path": path, "credential": "shop", "signature": "body"}
        answer = await api.put(f"/api/webhooks/{name}", json=body)
        assert answer.json()["signature"] == "body"
    headers = sign_as_before()
    assert (await api.post("/api/webhooks/orders", content=BODY, headers=headers)).is_success
    assert (await api.post("/api/webhooks/orders", content=BODY, headers=sign())).is_success
    # The same call at another webhook of the credential starts nothing, also with the older one.
    other = await api.post("/api/webhooks/payments", content=BODY, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert {started.path for started in list_starts(world)} == {"demo/hello"}


async def test_a_bound_credential_signs_for_its_webhook_alone(api: Api, world: ApiWorld) -> None:
    await keep_credential(api, "bound", webhook="bills")
    body = {"path": "demo/hello", "credential": "bound"}
    refused = await api.put("/api/webhooks/others", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "credential_bound")
    assert (await api.put("/api/webhooks/bills", json=body)).is_success
    answer = await api.post("/api/webhooks/bills", content=BODY, headers=sign(name="bills"))
    assert answer.status_code == 202, answer.text
    # Bound after it was named by a webhook.
    await keep_credential(api, "shop", webhook="payments")
    late = await api.post("/api/webhooks/orders", content=BODY, headers=sign())
    assert (late.status_code, late.json()["code"]) == (409, "credential_bound")
    assert len(list_starts(world)) == 1
