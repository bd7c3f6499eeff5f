"""People sign in from a terminal at a real provider, and their tokens go nowhere else."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from tests.support.canned_api import serve_answers
from tests.support.identity_provider import CLI, IdentityProvider
from tests.support.signing_in import HOPS_MAX, Browser, Site, a_site
from tests.support.signing_in_cli import (
    begun,
    call,
    change_record,
    end_of,
    read_note,
    read_record,
    records_file,
    sign_in_with_browser,
)


async def enter_code(browser: Browser, address: str, code: str, *, is_granted: bool = True) -> None:
    """What the person does at the provider: type the code, sign in, agree."""
    page = await browser.get(address)
    hidden = dict(re.findall(r'name="(xsrf)" value="([^"]+)"', page.text))
    page = await browser.post(address, data={**hidden, "user_code": code})
    hidden = dict(re.findall(r'name="(xsrf)" value="([^"]+)"', page.text))
    word = {"confirm": "yes"} if is_granted else {"abort": "yes"}
    page = await browser.post(address, data={**hidden, "user_code": code, **word})
    for _ in range(HOPS_MAX if is_granted else 0):
        if page.is_redirect:
            page = await browser.get(str(page.url.join(page.headers["location"])))
        elif "<form" in page.text:
            page = await browser.submit_form(page, "ann", is_granted=True)


async def test_a_person_signs_in_with_a_code(site: Site, browser: Browser, tmp_path: Path) -> None:
    async with begun(tmp_path, "login", "--server", site.url, "--json") as process:
        address, code = await read_note(process, "Open"), await read_note(process, "Enter")
        await enter_code(browser, address, code)
        ended = await end_of(process)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["name"] == "Name of ann"
    record = read_record(tmp_path, site)
    person = await site.sign_in.verifier.verify_token(record["bearer"])
    assert (person.subject, person.client_id) == ("ann", CLI)
    assert records_file(tmp_path).stat().st_mode & 0o777 == 0o600
    for secret in (record["bearer"], record["refresh_token"]):
        assert secret not in ended.out + ended.err


async def test_a_person_who_declines_a_code_is_not_signed_in(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    async with begun(tmp_path, "login", "--server", site.url) as process:
        address, code = await read_note(process, "Open"), await read_note(process, "Enter")
        await enter_code(browser, address, code, is_granted=False)
        ended = await end_of(process)
    assert ended.code == 1
    assert "refused" in ended.err
    assert not records_file(tmp_path).exists()


async def test_tokens_are_renewed_by_one_command_at_a_time(
    site: Site, provider: IdentityProvider, tmp_path: Path
) -> None:
    ended = await sign_in_with_browser(tmp_path, site)
    assert ended.code == 0, ended.err
    first = read_record(tmp_path, site)
    before = provider.count_refreshes()
    for _ in range(2):
        change_record(tmp_path, site, expires_s=1.0)
        calls = [call(tmp_path, "pools", "--server", site.url, "--json") for _ in range(4)]
        for answer in await asyncio.gather(*calls):
            assert answer.code == 0, answer.err
    assert provider.count_refreshes() - before == 2
    last = read_record(tmp_path, site)
    assert last["refresh_token"] != first["refresh_token"]
    assert (await site.sign_in.verifier.verify_token(last["bearer"])).subject == "ann"


async def test_a_refresh_token_that_was_used_before_ends_the_sign_in(
    site: Site, tmp_path: Path
) -> None:
    """What a thief of the file meets, and its owner: both have to sign in again."""
    await sign_in_with_browser(tmp_path, site)
    stolen = read_record(tmp_path, site)
    change_record(tmp_path, site, expires_s=1.0)
    assert (await call(tmp_path, "pools", "--server", site.url)).code == 0
    change_record(tmp_path, site, refresh_token=stolen["refresh_token"], expires_s=1.0)
    ended = await call(tmp_path, "pools", "--server", site.url)
    assert ended.code == 1
    assert "noetl login" in ended.err


async def test_a_person_signs_out_here_and_there(
    site: Site, provider: IdentityProvider, browser: Browser, tmp_path: Path
) -> None:
    await sign_in_with_browser(tmp_path, site)
    record = read_record(tmp_path, site)
    assert (await call(tmp_path, "logout", "--server", site.url)).code == 0
    assert json.loads(records_file(tmp_path).read_text()) == {}
    form = {
        "grant_type": "refresh_token",
        "refresh_token": record["refresh_token"],
        "client_id": CLI,
    }
    answer = await browser.post(f"{provider.issuer}/token", data=form)
    assert answer.json()["error"] == "invalid_grant"
    again = await call(tmp_path, "logout", "--server", site.url)
    assert (again.code, "not signed in" in again.out) == (0, True)


async def test_an_answer_with_another_state_is_not_taken(
    site: Site, browser: Browser, tmp_path: Path
) -> None:
    async with begun(tmp_path, "login", "--browser", "--server", site.url) as process:
        address = httpx.URL(await read_note(process, "Open"))
        assert address.params["code_challenge_method"] == "S256"
        back = address.params["redirect_uri"]
        assert back.startswith("http://127.0.0.1:")
        for query in ({"code": "evil"}, {"code": "evil", "state": "0" * 32}, {"state": "é"}):
            assert (await browser.get(back, params=query)).status_code == 404
        own = {"state": address.params["state"], "code": "evil", "iss": "https://evil.example.org"}
        await browser.get(back, params=own)
        ended = await end_of(process)
    assert ended.code == 1
    assert "another provider" in ended.err


async def test_id_tokens_are_sent_where_the_server_has_no_audience(
    provider: IdentityProvider, planner_url: str, tmp_path: Path
) -> None:
    async with a_site(provider, planner_url, oidc_audiences=()) as site:
        ended = await sign_in_with_browser(tmp_path, site, login="bob")
        assert ended.code == 0, ended.err
        person = await site.sign_in.verifier.verify_token(read_record(tmp_path, site)["bearer"])
    assert (person.subject, person.name) == ("bob", "Name of bob")


@pytest.mark.parametrize(
    ("issuer", "said"),
    [
        ("http://id.example.org", "not https"),
        ("ftp://id.example.org", "not https"),
        ("http://127.example.org", "not https"),
        ("PROVIDER/", "calls itself"),
    ],
)
async def test_a_server_that_names_another_provider_gets_nobody_signed_in(
    provider: IdentityProvider, tmp_path: Path, issuer: str, said: str
) -> None:
    named = {
        "issuer": issuer.replace("PROVIDER", provider.issuer),
        "client_id": CLI,
        "scopes": ["openid"],
        "token": "id_token",
    }
    with serve_answers({"GET /api/auth/config": (200, {"oidc": named})}) as api:
        ended = await call(tmp_path, "login", "--server", api.url)
    assert ended.code == 1
    assert said in ended.err


async def test_a_server_without_a_provider_says_so(tmp_path: Path) -> None:
    with serve_answers({"GET /api/auth/config": (200, {"oidc": None})}) as api:
        ended = await call(tmp_path, "login", "--server", api.url)
    assert ended.code == 1
    assert "NOETL_API_KEY" in ended.err
