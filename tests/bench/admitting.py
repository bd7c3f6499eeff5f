"""What it costs to know who sends a request and whether they may: the API's gate over PostgreSQL.

The gate is called as the API calls it, with identities in PostgreSQL and tokens of a provider on
loopback, and no web framework around it: next to one, the costs are lost in its spread.
"""

import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import uvloop
from litestar.types import HTTPScope
from msgspec import Struct
from tests.bench.spread import share
from tests.support.api import ApiWorld
from tests.support.canned_api import serve_answers
from tests.support.identities import OWNER_TOKEN, make_caller_of
from tests.support.identity_provider import CLI, a_key, sign_claims
from tests.support.servers import postgres_server
from tests.support.signing_in import a_settings, open_from_settings
from tests.support.storage import ORGANIZATION, TENANT, Stores, migrated, postgres_stores

from noetl_chassis.clock import SystemClock
from noetl_chassis.lifecycle import tune_garbage_collector
from noetl_contracts.identity.role_bindings import RoleBinding, SubjectKind
from noetl_planner.api.http.gate import Gate
from noetl_planner.api.http.quota_board import QuotaBoard
from noetl_planner.api.http.services import ApiServices
from noetl_planner.identity.authenticator import Authenticator, digest_token
from noetl_planner.identity.openid.browser_sessions import SESSION_COOKIE
from noetl_planner.identity.openid.sign_in import SignIn

REQUESTS, NEW_REQUESTS = 50_000, 500
GOAL_US = 150.0
PATH = "/api/executions/{execution_id}"
GROUPS = ("operators", "west")
TOKEN_LIVES_S = 3600


class Evidence(Struct, frozen=True):
    """How somebody shows who they are, as a header of a request."""

    name: str
    header: tuple[bytes, bytes]


def measure(*, requests: int = REQUESTS, new_requests: int = NEW_REQUESTS) -> dict[str, Any]:
    """Admit requests of each kind, one after another, as known and as seen for the first time."""
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        tune_garbage_collector()
        rows = uvloop.run(_measure(Path(folder), requests, new_requests))
    return {"requests": requests, "new_requests": new_requests, "goal_us": GOAL_US, "kinds": rows}


async def _measure(folder: Path, requests: int, new_requests: int) -> list[dict[str, Any]]:
    with postgres_server(folder / "server") as server, _provider() as (issuer, token):
        dsn = await server.create_database("admitting")
        async with (
            migrated(dsn) as database,
            _open_services(postgres_stores(database), issuer) as (services, sign_in),
        ):
            stores = postgres_stores(database)
            return [
                {
                    "name": evidence.name,
                    "known": await _time_known(services, evidence, requests),
                    "new": await _time_new(services, evidence, new_requests),
                }
                for evidence in await _make_evidence(stores, sign_in, token)
            ]


@contextmanager
def _provider() -> Iterator[tuple[str, str]]:
    """A provider's two documents, and a token of it."""
    key = a_key("k1")
    answers: dict[str, tuple[int, Any]] = {}
    with serve_answers(answers) as served:
        answers["GET /.well-known/openid-configuration"] = (
            200,
            {
                "issuer": served.url,
                "authorization_endpoint": f"{served.url}/auth",
                "token_endpoint": f"{served.url}/token",
                "jwks_uri": f"{served.url}/jwks",
            },
        )
        answers["GET /jwks"] = (200, {"keys": [key.as_dict(private=False)]})
        now = int(time.time())
        claims = {
            "iss": served.url,
            "sub": "ann",
            "aud": CLI,
            "iat": now,
            "exp": now + TOKEN_LIVES_S,
            "groups": list(GROUPS),
        }
        yield served.url, sign_claims({"alg": "RS256", "kid": "k1"}, claims, key)


@asynccontextmanager
async def _open_services(stores: Stores, issuer: str) -> AsyncIterator[tuple[ApiServices, SignIn]]:
    clock = SystemClock()
    config = a_settings(issuer, "http://127.0.0.1:1")
    async with open_from_settings(config, stores.sessions, clock) as sign_in:
        assert sign_in is not None, "an issuer is set"
        authenticator = Authenticator(
            stores.identities, clock, owner_digest=digest_token(OWNER_TOKEN), sign_in=sign_in
        )
        world = ApiWorld()
        world.identities = cast("Any", stores.identities)
        yield (
            world.services(
                authenticator=authenticator,
                administration=stores.administration,
                quotas=stores.quotas,
                quota_board=QuotaBoard(stores.quotas),
            ),
            sign_in,
        )


async def _make_evidence(stores: Stores, sign_in: SignIn, token: str) -> list[Evidence]:
    place = (TENANT, ORGANIZATION)
    account = await make_caller_of(stores.identities, "operator", place=place)
    await stores.identities.put_binding(
        RoleBinding(
            binding_id="1001",
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            subject_kind=SubjectKind.GROUP,
            subject=GROUPS[0],
            issuer=sign_in.config.issuer,
            role="operator",
        )
    )
    person = await sign_in.verifier.verify_token(token)
    secret = await sign_in.sessions.begin_session(person)
    cookie = f"{SESSION_COOKIE}={secret}".encode()
    return [
        Evidence("the owner's token", _build_bearer(OWNER_TOKEN)),
        Evidence("an API key", _build_bearer(account.key or "")),
        Evidence("a token of the provider", _build_bearer(token)),
        Evidence("a browser's session", (b"cookie", cookie)),
    ]


def _build_bearer(token: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {token}".encode()


def _build_scope(evidence: Evidence) -> HTTPScope:
    """Describe a request as a server does, with the headers that clients send beside the proof."""
    headers = [
        (b"host", b"127.0.0.1:8700"),
        (b"user-agent", b"bench"),
        (b"accept", b"*/*"),
        evidence.header,
    ]
    return cast(
        "HTTPScope",
        {
            "type": "http",
            "method": "GET",
            "path_template": PATH,
            "headers": headers,
            "client": ("127.0.0.1", 1),
        },
    )


async def _time_known(services: ApiServices, evidence: Evidence, requests: int) -> dict[str, float]:
    """Time requests of one client; every few seconds it is looked up again, as always."""
    gate, scope = Gate(services), _build_scope(evidence)
    await gate.admit_request(scope)
    return _describe([await _time_request_us(gate, scope) for _ in range(requests)])


async def _time_new(services: ApiServices, evidence: Evidence, requests: int) -> dict[str, float]:
    """Time requests that no gate remembers: the first of a client, or after some seconds."""
    scope = _build_scope(evidence)
    return _describe([await _time_request_us(Gate(services), scope) for _ in range(requests)])


async def _time_request_us(gate: Gate, scope: HTTPScope) -> float:
    began = time.perf_counter()
    await gate.admit_request(scope)
    return (time.perf_counter() - began) * 1e6


def _describe(times_us: list[float]) -> dict[str, float]:
    return {
        name: round(share(times_us, part), 1)
        for name, part in (("p50_us", 0.5), ("p95_us", 0.95), ("p99_us", 0.99))
    }


def section(one: dict[str, Any]) -> str:
    """Write the figures for people."""
    rows = "\n".join(
        f"| {kind['name']} | {_show(kind['known'])} | {_show(kind['new'])} |"
        for kind in one["kinds"]
    )
    return f"""## Who asks, and whether they may

Every request passes the API's gate: the proof, the roles, the permission, the rates. {one["requests"]:,} requests of one client
after another, and {one["new_requests"]} each of which is the first; identities in PostgreSQL. Goal: p50 below {one["goal_us"]:g} us.

| shown | us a request, p50 / p95 / p99 | the first one |
|---|---:|---:|
{rows}
"""


def _show(times: dict[str, float]) -> str:
    return " / ".join(f"{times[name]:,g}" for name in ("p50_us", "p95_us", "p99_us"))
