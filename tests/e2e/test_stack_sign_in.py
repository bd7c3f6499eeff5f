"""A whole stack signs a person in, and remembers it in PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.identity_provider import CLI, WEB, WEB_SECRET, identity_provider
from tests.support.polling import eventually
from tests.support.signing_in import Browser
from tests.support.stack import Stack, running_stack


async def is_session_known(browser: Browser, url: str) -> bool:
    try:
        return (await browser.get(f"{url}/auth/session")).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def own_stack(tmp_path: Path) -> Iterator[Stack]:
    with running_stack(tmp_path / "home", "--no-s3", "--workers", "0") as opened:
        yield opened


async def test_a_session_outlives_the_planner(own_stack: Stack) -> None:
    url = own_stack.url("api")
    with identity_provider(url) as provider:
        told = {
            "OIDC_ISSUER": provider.issuer,
            "OIDC_CLIENT_ID": WEB,
            "OIDC_CLIENT_SECRET": WEB_SECRET,
            "OIDC_CLI_CLIENT_ID": CLI,
            "OIDC_SCOPES": "openid,profile,email,groups",
            "PUBLIC_URL": url,
        }
        own_stack.noetl("down")
        options = [
            part for name, value in told.items() for part in ("--set", f"PLANNER_{name}={value}")
        ]
        own_stack.noetl("up", "--no-s3", "--workers", "0", *options)
        assert own_stack.url("api") == url
        browser = Browser()
        begun = await browser.get(f"{url}/auth/login", params={"next": "/api/pools"})
        back = await browser.walk_until(begun.headers["location"], f"{url}/auth/callback")
        answer = await browser.get(back)
        assert (answer.status_code, answer.headers["location"]) == (303, "/api/pools")
        own_stack.kill("planner-1")
        await eventually(lambda: is_session_known(browser, url))
        token = (await browser.get(f"{url}/auth/session")).json()["csrf_token"]
        answer = await browser.post(f"{url}/auth/logout", headers={"X-CSRF-Token": token})
        assert answer.status_code == 200
        assert not await is_session_known(browser, url)
        await browser.close()
