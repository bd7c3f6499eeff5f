"""People sign in with a browser at a real provider, and others do not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.support.identity_provider import WEB, IdentityProvider, identity_provider
from tests.support.signing_in import (
    Browser,
    MovableClock,
    Site,
    a_settings,
    a_site,
    open_from_settings,
)

from noetl_planner.api.app import create_app
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused
from noetl_storage.memory.identities import MemorySessions

SESSION, PENDING = "noetl_session", "noetl_sign_in"
PUBLIC = "https://noetl.example.org"


def code_of(answer: httpx.Response) -> str:
    code: str = answer.json()["code"]
    return code


async def status_of_session(site: Site, browser: Browser) -> int:
    return (await browser.get(f"{site.url}/auth/session")).status_code


async def csrf_token(site: Site, browser: Browser) -> str:
    token: str = (await browser.get(f"{site.url}/auth/session")).json()["csrf_token"]
    return token


@asynccontextmanager
async def an_api(issuer: str, public_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """An API without a port, for what no browser has to walk through."""
    world, clock = ApiWorld(), MovableClock()
    config = a_settings(issuer, public_url)
    async with open_from_settings(config, MemorySessions(world.store), clock) as sign_in:
        app = create_app(world.services(sign_in=sign_in, http_hosts=("noetl.example.org",)))
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]  # an app of ASGI by another name
        async with httpx.AsyncClient(transport=transport, base_url=public_url) as client:
            yield client


async def test_a_person_signs_in_and_is_known(site: Site, browser: Browser) -> None:
    answer = await browser.sign_in(site, path="/console?a=1")
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/console?a=1"
    who = (await browser.get(f"{site.url}/auth/session")).json()
    assert (who["subject"], who["name"], who["email"]) == ("ann", "Name of ann", "ann@example.org")
    assert who["groups"] == ["operators", "west"]


async def test_nobody_is_signed_in_who_has_not_signed_in(site: Site, browser: Browser) -> None:
    for cookie in (None, "", "f" * 64, "f" * 63, "%00" * 64, "f" * 5000):
        if cookie is not None:
            browser.client.cookies.set(SESSION, cookie, domain="127.0.0.1")
        answer = await browser.get(f"{site.url}/auth/session")
        assert (answer.status_code, code_of(answer)) == (401, "signed_out")


async def test_a_person_who_declines_is_not_signed_in(site: Site, browser: Browser) -> None:
    begun = await browser.get(f"{site.url}/auth/login")
    back = await browser.walk_until(
        begun.headers["location"], f"{site.url}/auth/callback", is_granted=False
    )
    answer = await browser.get(back)
    assert (answer.status_code, code_of(answer)) == (403, "provider_refused")
    assert await status_of_session(site, browser) == 401


async def test_an_answer_for_another_browser_is_refused(site: Site, browser: Browser) -> None:
    """Login CSRF: a victim is sent back with the code of the attacker."""
    back, victim = await browser.come_back(site), Browser()
    assert code_of(await victim.get(back)) == "sign_in_state"
    begun = await victim.get(f"{site.url}/auth/login")
    assert begun.status_code == 303
    assert code_of(await victim.get(back)) == "sign_in_state"
    assert await status_of_session(site, victim) == 401
    await victim.close()


async def test_a_code_of_another_sign_in_is_refused(site: Site, browser: Browser) -> None:
    """Code injection: the attacker's browser asks with the victim's code, and its own state."""
    stolen = httpx.URL(await browser.come_back(site)).params["code"]
    attacker = Browser()
    back = httpx.URL(await attacker.come_back(site, login="bob"))
    answer = await attacker.get(str(back.copy_set_param("code", stolen)))
    assert (answer.status_code, code_of(answer)) == (403, "provider_refused")
    assert await status_of_session(site, attacker) == 401
    await attacker.close()


@pytest.mark.parametrize("change", ["state", "cookie", "signature", "no_state", "no_cookie"])
async def test_a_changed_answer_is_refused(site: Site, browser: Browser, change: str) -> None:
    back = httpx.URL(await browser.come_back(site))
    cookie = browser.client.cookies[PENDING]
    match change:
        case "state":
            back = back.copy_set_param("state", "0" * 32)
        case "no_state":
            back = back.copy_remove_param("state")
        case "cookie":
            body, _, signature = cookie.partition(".")
            browser.client.cookies.set(PENDING, f"{body}A.{signature}", domain="127.0.0.1")
        case "signature":
            browser.client.cookies.set(PENDING, f"{cookie[:-1]}~", domain="127.0.0.1")
        case _:
            browser.client.cookies.clear()
    answer = await browser.get(str(back))
    assert (answer.status_code, code_of(answer)) == (400, "sign_in_state")


async def test_a_code_is_good_once(site: Site, browser: Browser) -> None:
    back = await browser.come_back(site)
    cookie = browser.client.cookies[PENDING]
    assert (await browser.get(back)).status_code == 303
    thief = Browser()
    thief.client.cookies.set(PENDING, cookie, domain="127.0.0.1")
    answer = await thief.get(back)
    assert (answer.status_code, code_of(answer)) == (403, "provider_refused")
    assert await status_of_session(site, thief) == 401
    await thief.close()


async def test_a_sign_in_that_takes_too_long_is_refused(site: Site, browser: Browser) -> None:
    back = await browser.come_back(site)
    site.clock.ahead_s = 601
    answer = await browser.get(back)
    assert (answer.status_code, code_of(answer)) == (400, "sign_in_expired")


async def test_an_answer_of_another_issuer_is_refused(site: Site, browser: Browser) -> None:
    back = httpx.URL(await browser.come_back(site))
    for address in (
        back.copy_set_param("iss", "https://evil.example.org"),
        back.copy_remove_param("iss"),
    ):
        answer = await browser.get(str(address))
        assert (answer.status_code, code_of(answer)) == (401, "token_issuer")


async def test_a_token_of_another_sign_in_is_refused(
    site: Site, provider: IdentityProvider
) -> None:
    verifier = site.sign_in.verifier
    token = provider.forge(aud=WEB, nonce="of the first")
    wanted = {"issuer": provider.issuer, "client_id": WEB}
    claims, _ = await verifier.verify_id_token(token, nonce="of the first", **wanted)
    assert claims.sub == "ann"
    for forged in (token, provider.forge(aud=WEB)):
        with pytest.raises(TokenRefused) as refused:
            await verifier.verify_id_token(forged, nonce="of the second", **wanted)
        assert refused.value.code is RefusalCode.TOKEN_NONCE


async def test_a_session_that_was_planted_is_worth_nothing(site: Site, browser: Browser) -> None:
    """Fixation: the attacker knows the cookie that the victim's browser had before."""
    attacker = Browser()
    await attacker.sign_in(site, login="bob")
    planted = attacker.client.cookies[SESSION]
    browser.client.cookies.set(SESSION, planted, domain="127.0.0.1", path="/")
    await browser.sign_in(site)
    values = {item.value for item in browser.client.cookies.jar if item.name == SESSION}
    assert values - {planted}, "the victim has a session of its own"
    assert await status_of_session(site, attacker) == 401
    await attacker.close()


async def test_a_session_ends_with_its_csrf_token_only(site: Site, browser: Browser) -> None:
    await browser.sign_in(site)
    token = await csrf_token(site, browser)
    other = Browser()
    await other.sign_in(site, login="bob")
    stolen = await csrf_token(site, other)
    address = f"{site.url}/auth/logout"
    for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": stolen}):
        answer = await browser.post(address, headers=headers)
        assert (answer.status_code, code_of(answer)) == (403, "csrf_token")
    origin = {"X-CSRF-Token": token, "Origin": "https://evil.example.org"}
    assert code_of(await browser.post(address, headers=origin)) == "cross_site"
    assert await status_of_session(site, browser) == 200
    cookie = browser.client.cookies[SESSION]
    answer = await browser.post(address, headers={"X-CSRF-Token": token})
    assert answer.status_code == 200
    browser.client.cookies.set(SESSION, cookie, domain="127.0.0.1")
    assert await status_of_session(site, browser) == 401
    assert await status_of_session(site, other) == 200
    page = await browser.get(answer.json()["provider_logout_url"])
    assert page.status_code == 200
    await other.close()


async def test_a_get_ends_no_session(site: Site, browser: Browser) -> None:
    await browser.sign_in(site)
    assert (await browser.get(f"{site.url}/auth/logout")).status_code == 405
    assert await status_of_session(site, browser) == 200


async def test_a_session_is_revoked_from_elsewhere(site: Site, browser: Browser) -> None:
    await browser.sign_in(site)
    assert await status_of_session(site, browser) == 200
    issuer = site.sign_in.config.issuer
    assert await site.sign_in.sessions.revoke_person_sessions(issuer, "ann") >= 1
    assert await status_of_session(site, browser) == 401


async def test_another_process_learns_of_a_revocation(site: Site, browser: Browser) -> None:
    await browser.sign_in(site)
    assert await status_of_session(site, browser) == 200
    elsewhere = MemorySessions(site.world.store)
    issuer = site.sign_in.config.issuer
    await elsewhere.revoke_person_sessions(issuer, "ann", now=site.clock.now())
    site.clock.ahead_s = 5
    assert await status_of_session(site, browser) == 401


async def test_a_session_lasts_twelve_hours(site: Site, browser: Browser) -> None:
    await browser.sign_in(site)
    site.clock.ahead_s = 12 * 3600 - 60
    assert await status_of_session(site, browser) == 200
    site.clock.ahead_s = 12 * 3600
    assert await status_of_session(site, browser) == 401


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example.org",
        "//evil.example.org",
        "/\\evil.example.org",
        "\\\\evil.example.org",
        "/\t/evil.example.org",
        "/\n/evil.example.org",
        "javascript:alert(1)",
        "",
        "console",
        "/a\r\nSet-Cookie: a=b",
        "/" + "a" * 2000,
        "/é",
    ],
)
async def test_a_sign_in_leads_nowhere_else(site: Site, browser: Browser, path: str) -> None:
    answer = await browser.get(f"{site.url}/auth/login", params={"next": path})
    assert (answer.status_code, code_of(answer)) == (400, "sign_in_path")


async def test_cookies_of_a_public_server_are_its_own(provider: IdentityProvider) -> None:
    async with an_api(provider.issuer, PUBLIC) as api:
        begun = await api.get("/auth/login", follow_redirects=False)
    assert begun.status_code == 303
    cookie = begun.headers["set-cookie"]
    assert cookie.startswith("__Host-noetl_sign_in=")
    for part in ("Secure", "HttpOnly", "SameSite=lax", "Path=/", "Max-Age=600"):
        assert part in cookie
    assert "domain" not in cookie.lower()
    address = httpx.URL(begun.headers["location"])
    assert address.params["redirect_uri"] == f"{PUBLIC}/auth/callback"
    assert (address.params["code_challenge_method"], address.params["response_type"]) == (
        "S256",
        "code",
    )


async def test_cookies_of_a_loopback_are_for_http(site: Site, browser: Browser) -> None:
    answer = await browser.sign_in(site)
    session, pending = sorted(answer.headers.get_list("set-cookie"))
    assert session.startswith("noetl_session=")
    assert "HttpOnly" in session
    assert "SameSite=lax" in session
    assert "Secure" not in session
    assert pending.startswith('noetl_sign_in="";')
    assert "Max-Age=0" in pending
    assert answer.headers["cache-control"] == "no-store"


async def test_a_host_that_a_client_claims_changes_nothing(provider: IdentityProvider) -> None:
    async with an_api(provider.issuer, PUBLIC) as api:
        headers = {"Host": "localhost", "X-Forwarded-Host": "evil.example.org"}
        begun = await api.get("/auth/login", headers=headers, follow_redirects=False)
    redirect = httpx.URL(begun.headers["location"]).params["redirect_uri"]
    assert redirect == f"{PUBLIC}/auth/callback"


async def test_groups_come_from_the_provider_where_the_token_has_none(
    planner_url: str, browser: Browser
) -> None:
    with identity_provider(planner_url, conform=True) as quiet:
        async with a_site(quiet, planner_url) as site:
            await browser.sign_in(site)
            who = (await browser.get(f"{site.url}/auth/session")).json()
    assert who["groups"] == ["operators", "west"]


async def test_a_provider_that_is_away_is_told_as_such(browser: Browser) -> None:
    async with an_api("http://127.0.0.1:1", PUBLIC) as api:
        for _ in range(2):
            answer = await api.get("/auth/login", follow_redirects=False)
            assert (answer.status_code, code_of(answer)) == (503, "provider_unreachable")
        config = (await api.get("/api/auth/config")).json()
    assert config["oidc"]["has_device_flow"] is None


async def test_a_provider_that_is_another_is_refused(site: Site) -> None:
    """The address answers, and calls itself by another name."""
    async with an_api(site.sign_in.config.issuer + "/", PUBLIC) as api:
        answer = await api.get("/auth/login", follow_redirects=False)
    assert (answer.status_code, code_of(answer)) == (503, "provider_malformed")


async def test_clients_learn_how_to_sign_in(site: Site, browser: Browser) -> None:
    config = (await browser.get(f"{site.url}/api/auth/config")).json()
    assert config == {
        "oidc": {
            "issuer": site.sign_in.config.issuer,
            "client_id": "noetl-cli",
            "scopes": ["openid", "profile", "email", "groups", "offline_access"],
            "token": "access_token",
            "audience": "https://noetl.example.org/api",
            "has_device_flow": True,
        },
        "browser_sign_in": "/auth/login",
    }
    assert "secret" not in str(config)


async def test_without_a_provider_nobody_signs_in() -> None:
    async with AsyncTestClient(create_app(ApiWorld().services())) as api:
        assert (await api.get("/api/auth/config")).json() == {
            "oidc": None,
            "browser_sign_in": None,
        }
        for path in ("login", "callback", "session"):
            assert (await api.get(f"/auth/{path}")).status_code == 404
        assert (await api.post("/auth/logout")).status_code == 404
