"""Sessions of browsers that begin with a token: once, for a while, and no longer than the token."""

import asyncio
from http import HTTPStatus
from typing import Any

import httpx
import pytest
from tests.support.api import ApiWorld
from tests.support.identities import NOBODY, OWNER, OWNER_TOKEN, Caller, make_caller, open_client
from tests.support.signing_in import MovableClock

from noetl_planner.api.app import create_app
from noetl_planner.api.http import gate
from noetl_planner.identity.authenticator import Authenticator, digest_token
from noetl_planner.identity.openid import browser_sessions
from noetl_planner.identity.openid.browser_sessions import (
    CODE_S,
    BrowserSessions,
    BrowserSessionsPort,
)
from noetl_storage.memory.identities import MemorySessions

WHOAMI = "/api/auth/whoami"


class SessionApi:
    """An API with sessions, whose time and owner's token a test may change."""

    def __init__(self, *, is_secure: bool = False) -> None:
        self.world, self.clock = ApiWorld(), MovableClock()
        self._sessions = MemorySessions(self.world.store)
        self._is_secure = is_secure
        self.app = self.build_app(OWNER_TOKEN)

    def build_app(self, owner_token: str) -> Any:
        browsers = BrowserSessionsPort(
            sessions=BrowserSessions(self._sessions, self.clock), is_secure=self._is_secure
        )
        authenticator = Authenticator(
            self.world.identities,
            self.clock,
            owner_digest=digest_token(owner_token),
            browsers=browsers,
        )
        return create_app(self.world.services(authenticator=authenticator, clock=self.clock))

    async def make_code(self, caller: Caller = OWNER) -> str:
        async with open_client(self.app, caller) as client:
            answer = await client.post("/auth/codes")
        assert answer.status_code == HTTPStatus.OK, answer.text
        return str(answer.json()["code"])

    async def begin(self, client: httpx.AsyncClient, code: str) -> int:
        return (await client.post("/auth/session", json={"code": code})).status_code


async def test_a_code_opens_one_session_that_is_its_maker() -> None:
    session_api = SessionApi()
    code = await session_api.make_code()
    async with open_client(session_api.app) as browser, open_client(session_api.app) as thief:
        assert await session_api.begin(browser, code) == HTTPStatus.OK
        assert await session_api.begin(thief, code) == HTTPStatus.UNAUTHORIZED
        who = (await browser.get(WHOAMI)).json()
        assert (who["kind"], who["name"], who["via"]) == ("owner", "owner", "console")
        assert (await thief.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED


async def test_two_at_once_with_one_code_get_one_session() -> None:
    session_api = SessionApi()
    code = await session_api.make_code()
    async with open_client(session_api.app) as client, open_client(session_api.app) as other:
        found = await asyncio.gather(
            session_api.begin(client, code), session_api.begin(other, code)
        )
    assert sorted(found) == [HTTPStatus.OK, HTTPStatus.UNAUTHORIZED]


async def test_a_code_is_over_after_a_minute() -> None:
    session_api = SessionApi()
    code = await session_api.make_code()
    session_api.clock.ahead_s += CODE_S + 1
    async with open_client(session_api.app) as browser:
        assert await session_api.begin(browser, code) == HTTPStatus.UNAUTHORIZED


async def test_a_code_is_no_cookie_and_a_cookie_is_no_code() -> None:
    session_api = SessionApi()
    code = await session_api.make_code()
    async with open_client(session_api.app) as browser:
        browser.cookies.set("noetl_session", code)
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED
    async with open_client(session_api.app) as browser:
        assert await session_api.begin(browser, code) == HTTPStatus.OK
        secret = browser.cookies["noetl_session"]
        assert await session_api.begin(browser, secret) == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("code", ["", "x", "0" * 64, "0" * 200, "ä" * 64])
async def test_what_is_no_code_opens_nothing(code: str) -> None:
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        assert await session_api.begin(browser, code) == HTTPStatus.UNAUTHORIZED


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    for is_secure in (False, True):
        session_api = SessionApi(is_secure=is_secure)
        async with open_client(session_api.app, OWNER) as client:
            answer = await client.post("/auth/session")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert "max-age=43200" in cookie
        assert ("secure" in cookie) == is_secure
        assert cookie.startswith("__host-noetl_session=" if is_secure else "noetl_session=")
        assert answer.headers["cache-control"] == "no-store"


async def test_a_write_with_the_cookie_carries_the_sessions_token() -> None:
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code())
        bare = await browser.post("/api/executions/1/cancel", json={})
        assert (bare.status_code, bare.json()["code"]) == (HTTPStatus.FORBIDDEN, "csrf_token")
        token = (await browser.get("/auth/session")).json()["csrf_token"]
        sent = {"X-CSRF-Token": token}
        right = await browser.post("/api/executions/1/cancel", json={}, headers=sent)
        assert right.status_code == HTTPStatus.NOT_FOUND


async def test_what_is_remembered_of_a_session_lets_no_forged_write_in() -> None:
    session_api = SessionApi()
    admin = await make_caller(session_api.world, "admin")
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code(admin))
        for _ in range(2):
            assert (await browser.get("/api/keys")).status_code == HTTPStatus.OK
        for headers in ({}, {"X-CSRF-Token": "0" * 64}):
            forged = await browser.post("/api/keys", json={"account": "ci"}, headers=headers)
            assert (forged.status_code, forged.json()["code"]) == (403, "csrf_token")
        assert len((await browser.get("/api/keys")).json()["keys"]) == 1


async def test_roles_of_a_session_are_looked_up_once_in_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "REMEMBERED_S", 3600.0)
    session_api = SessionApi()
    viewer = await make_caller(session_api.world, "viewer")
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code(viewer))
        assert (await browser.get("/api/executions")).status_code == HTTPStatus.OK
        session_api.world.store.role_bindings.clear()
        assert (await browser.get("/api/executions")).status_code == HTTPStatus.OK
    # Another session of the same account is another matter.
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code(viewer))
        assert (await browser.get("/api/executions")).status_code == HTTPStatus.FORBIDDEN


async def test_another_sites_page_begins_no_session() -> None:
    session_api = SessionApi()
    code = await session_api.make_code()
    async with open_client(session_api.app, Origin="https://evil.example") as browser:
        assert await session_api.begin(browser, code) == HTTPStatus.FORBIDDEN


async def test_a_session_makes_no_codes_and_begins_no_sessions() -> None:
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code())
        token = (await browser.get("/auth/session")).json()["csrf_token"]
        for path in ("/auth/codes", "/auth/session"):
            answer = await browser.post(path, headers={"X-CSRF-Token": token})
            assert answer.status_code == HTTPStatus.UNAUTHORIZED, path


async def test_an_empty_token_beside_a_cookie_renews_no_session() -> None:
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code())
        token = (await browser.get("/auth/session")).json()["csrf_token"]
        secret = browser.cookies["noetl_session"]
        for path in ("/auth/codes", "/auth/session"):
            # The last of two headers is the one that admits a request.
            for shown in ([""], ["Bearer wrong", ""]):
                headers = [("X-CSRF-Token", token), *(("Authorization", item) for item in shown)]
                answer = await browser.post(path, headers=headers)
                assert answer.json()["code"] == "token_refused", (path, shown)
        assert browser.cookies["noetl_session"] == secret


async def test_who_signs_out_is_out_everywhere_at_once() -> None:
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code())
        secret = browser.cookies["noetl_session"]
        token = (await browser.get("/auth/session")).json()["csrf_token"]
        out = await browser.post("/auth/logout", headers={"X-CSRF-Token": token})
        assert out.status_code == HTTPStatus.OK
        browser.cookies.set("noetl_session", secret)
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED


async def test_a_session_ends_after_twelve_hours_and_with_another_owners_token() -> None:
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code())
        secret = browser.cookies["noetl_session"]
        session_api.clock.ahead_s += 12 * 3600 + 1
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED
    session_api = SessionApi()
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code())
        secret = browser.cookies["noetl_session"]
    async with open_client(session_api.build_app("another-token")) as browser:
        browser.cookies.set("noetl_session", secret)
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED


async def test_a_key_opens_a_session_with_its_roles_that_ends_with_it() -> None:
    session_api = SessionApi()
    viewer = await make_caller(session_api.world, "viewer")
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code(viewer))
        who = (await browser.get(WHOAMI)).json()
        assert (who["name"], who["roles"]) == (viewer.name, ["viewer"])
        assert (await browser.get("/api/dead-letters")).status_code == HTTPStatus.FORBIDDEN
        prefix = (viewer.key or "")[:18]
        await session_api.world.identities.revoke_key(
            prefix,
            tenant_id=who["tenant"],
            organization_id=who["organization"],
        )
        # As of other principals: what was looked up a moment ago counts for seconds.
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.OK
        session_api.clock.ahead_s += browser_sessions.KNOWN_S
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED


async def test_the_key_of_a_session_is_read_once_in_some_seconds() -> None:
    session_api = SessionApi()
    viewer = await make_caller(session_api.world, "viewer")
    async with open_client(session_api.app) as browser:
        await session_api.begin(browser, await session_api.make_code(viewer))
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.OK
        # Only the memory of the process can know the key now.
        session_api.world.store.api_keys.clear()
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.OK
        session_api.clock.ahead_s += browser_sessions.KNOWN_S
        assert (await browser.get(WHOAMI)).status_code == HTTPStatus.UNAUTHORIZED


async def test_nobody_and_a_worker_get_no_code() -> None:
    session_api = SessionApi()
    worker = await make_caller(session_api.world, "worker")
    for caller, status in ((NOBODY, HTTPStatus.UNAUTHORIZED), (worker, HTTPStatus.FORBIDDEN)):
        async with open_client(session_api.app, caller) as client:
            assert (await client.post("/auth/codes")).status_code == status


async def test_wrong_codes_and_tokens_are_recorded_a_few_of_them() -> None:
    door = SessionApi()
    wrong = {"Authorization": "Bearer nobody's"}
    async with open_client(door.app) as thief:
        for number in range(40):
            assert await door.begin(thief, f"{number:064}") == HTTPStatus.UNAUTHORIZED
            refused = await thief.post("/auth/session", headers=wrong)
            assert refused.status_code == HTTPStatus.FORBIDDEN
        assert (await thief.get("/auth/session")).status_code == HTTPStatus.UNAUTHORIZED
    ((_, records),) = door.world.store.administration.items()
    assert [(record.action, record.target) for record in records] == [
        ("access.denied", "POST /auth/session")
    ]
    assert records[0].actor.kind == "anonymous"
    assert records[0].actor.id
