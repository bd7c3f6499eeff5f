"""People and programs sign in at a real Keycloak, and its groups give them their roles."""

import json
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from tests.support.identity_provider import AUDIENCE, CLI, ROBOT, ROBOT_SECRET
from tests.support.keycloak import STRANGER, Keycloak, KeycloakBrowser
from tests.support.signing_in import Site, a_site, give_role
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

from noetl_contracts.identity.role_bindings import SubjectKind
from noetl_planner.identity.openid.refusals import RefusalCode, TokenRefused
from noetl_planner.identity.openid.token_claims import PrincipalKind

# The first test of a run installs the server, and starts it.
pytestmark = pytest.mark.timeout(1800)


async def ask(site: Site, token: str, path: str = "/api/executions") -> httpx.Response:
    async with httpx.AsyncClient(base_url=site.url) as client:
        return await client.get(path, headers={"Authorization": f"Bearer {token}"})


async def refuse(site: Site, token: str) -> RefusalCode:
    with pytest.raises(TokenRefused) as refused:
        await site.sign_in.verifier.verify_token(token)
    return refused.value.code


async def test_a_person_signs_in_with_a_browser_and_a_code(
    site: Site, keycloak: Keycloak, browser: KeycloakBrowser
) -> None:
    await give_role(site, "operators", "operator", kind=SubjectKind.GROUP)
    begun_at = await browser.get(f"{site.url}/auth/login")
    assert httpx.URL(begun_at.headers["location"]).params["code_challenge_method"] == "S256"
    answer = await browser.sign_in(site, path="/console")
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/console"
    who = (await browser.get(f"{site.url}/auth/session")).json()
    assert who["subject"] == keycloak.find_user_id("ann")
    assert (who["name"], who["email"]) == ("Name of ann", "ann@example.org")
    assert sorted(who["groups"]) == ["night", "operators"]
    assert (await browser.get(f"{site.url}/api/auth/whoami")).json()["roles"] == ["operator"]


async def test_a_sign_in_without_a_challenge_is_refused_by_the_realm(
    site: Site, browser: KeycloakBrowser
) -> None:
    begun_at = await browser.get(f"{site.url}/auth/login")
    address = httpx.URL(begun_at.headers["location"])
    for name in ("code_challenge", "code_challenge_method"):
        address = address.copy_remove_param(name)
    answer = await browser.get(str(address))
    assert answer.is_redirect
    back = await browser.get(answer.headers["location"])
    assert (back.status_code, back.json()["code"]) == (403, "provider_refused")


async def test_somebody_without_groups_has_no_role(site: Site, browser: KeycloakBrowser) -> None:
    await give_role(site, "operators", "operator", kind=SubjectKind.GROUP)
    await browser.sign_in(site, login="bob")
    answer = await browser.get(f"{site.url}/api/executions")
    assert (answer.status_code, answer.json()["code"]) == (HTTPStatus.FORBIDDEN, "no_role")


async def test_a_person_signs_in_from_a_terminal_with_a_devices_code(
    site: Site, keycloak: Keycloak, browser: KeycloakBrowser, tmp_path: Path
) -> None:
    await give_role(site, "operators", "operator", kind=SubjectKind.GROUP)
    async with begun(tmp_path, "login", "--server", site.url, "--json") as process:
        address, code = await read_note(process, "Open"), await read_note(process, "Enter")
        await browser.enter_code(address, code)
        ended = await end_of(process)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["name"] == "Name of ann"
    shown = await call(tmp_path, "whoami", "--server", site.url, "--json")
    assert json.loads(shown.out)["roles"] == ["operator"]
    person = await site.sign_in.verifier.verify_token(read_record(tmp_path, site)["bearer"])
    assert (person.subject, person.client_id) == (keycloak.find_user_id("ann"), CLI)


async def test_a_person_who_declines_a_code_is_not_signed_in(
    site: Site, browser: KeycloakBrowser, tmp_path: Path
) -> None:
    async with begun(tmp_path, "login", "--server", site.url) as process:
        address, code = await read_note(process, "Open"), await read_note(process, "Enter")
        await browser.enter_code(address, code, is_granted=False)
        ended = await end_of(process)
    assert ended.code == 1
    assert "refused" in ended.err
    assert not records_file(tmp_path).exists()


async def test_tokens_are_renewed_and_a_used_one_ends_the_sign_in(
    site: Site, tmp_path: Path
) -> None:
    await give_role(site, "operators", "operator", kind=SubjectKind.GROUP)
    ended = await sign_in_with_browser(tmp_path, site, browser=KeycloakBrowser())
    assert ended.code == 0, ended.err
    first = read_record(tmp_path, site)
    change_record(tmp_path, site, expires_s=1.0)
    answer = await call(tmp_path, "pools", "--server", site.url, "--json")
    assert answer.code == 0, answer.err
    renewed = read_record(tmp_path, site)
    assert renewed["refresh_token"] != first["refresh_token"]
    assert renewed["bearer"] != first["bearer"]
    change_record(tmp_path, site, refresh_token=first["refresh_token"], expires_s=1.0)
    ended = await call(tmp_path, "pools", "--server", site.url)
    assert ended.code == 1
    assert "noetl login" in ended.err


async def test_who_signs_out_of_a_terminal_is_signed_out_at_the_realm(
    site: Site, keycloak: Keycloak, tmp_path: Path
) -> None:
    await sign_in_with_browser(tmp_path, site, browser=KeycloakBrowser())
    record = read_record(tmp_path, site)
    assert (await call(tmp_path, "logout", "--server", site.url)).code == 0
    assert json.loads(records_file(tmp_path).read_text()) == {}
    with pytest.raises(httpx.HTTPStatusError) as refused:
        keycloak.ask_token(
            grant_type="refresh_token", refresh_token=record["refresh_token"], client_id=CLI
        )
    assert refused.value.response.json()["error"] == "invalid_grant"


async def test_who_signs_out_of_a_browser_is_asked_by_the_realm_and_comes_back(
    site: Site, browser: KeycloakBrowser
) -> None:
    await browser.sign_in(site)
    token = (await browser.get(f"{site.url}/auth/session")).json()["csrf_token"]
    out = await browser.post(f"{site.url}/auth/logout", headers={"X-CSRF-Token": token})
    assert out.status_code == HTTPStatus.OK
    assert (await browser.get(f"{site.url}/auth/session")).status_code == HTTPStatus.UNAUTHORIZED
    page = await browser.get(out.json()["provider_logout_url"])
    assert page.status_code == HTTPStatus.OK
    back = await browser.submit_form(page, "ann", is_granted=True)
    assert back.headers["location"] == f"{site.url}/"
    # The realm asks for the password again.
    begun_at = await browser.get(f"{site.url}/auth/login")
    assert "password" in (await browser.get(begun_at.headers["location"])).text


async def test_a_program_is_admitted_with_a_token_for_this_api(
    site: Site, keycloak: Keycloak
) -> None:
    token = keycloak.ask_client_token(ROBOT, ROBOT_SECRET)
    program = await site.sign_in.verifier.verify_token(token)
    assert (program.kind, program.client_id) == (PrincipalKind.SERVICE_ACCOUNT, ROBOT)
    assert program.name == f"service-account-{ROBOT}"
    await give_role(site, program.subject, "viewer", kind=SubjectKind.SERVICE_ACCOUNT)
    assert (await ask(site, token)).status_code == HTTPStatus.OK


async def test_a_token_for_another_api_is_refused(site: Site, keycloak: Keycloak) -> None:
    token = keycloak.ask_client_token(STRANGER, ROBOT_SECRET)
    assert await refuse(site, token) is RefusalCode.TOKEN_AUDIENCE
    answer = await ask(site, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_audience")


async def test_what_the_realm_keeps_for_itself_is_no_token_here(site: Site, tmp_path: Path) -> None:
    """A refresh token is a JWT of the realm too, signed with a secret of its own."""
    await sign_in_with_browser(tmp_path, site, browser=KeycloakBrowser())
    refresh_token = read_record(tmp_path, site)["refresh_token"]
    assert await refuse(site, refresh_token) is RefusalCode.TOKEN_ALGORITHM


async def test_id_tokens_open_the_api_where_it_has_no_audience(
    keycloak: Keycloak, planner_url: str, tmp_path: Path
) -> None:
    async with a_site(keycloak, planner_url, oidc_audiences=()) as site:
        ended = await sign_in_with_browser(tmp_path, site, browser=KeycloakBrowser())
        assert ended.code == 0, ended.err
        bearer = read_record(tmp_path, site)["bearer"]
        person = await site.sign_in.verifier.verify_token(bearer)
        assert sorted(person.groups) == ["night", "operators"]
        token = keycloak.ask_client_token(ROBOT, ROBOT_SECRET)
        assert await refuse(site, token) is RefusalCode.TOKEN_AUDIENCE


async def test_rotated_keys_are_fetched_and_old_ones_end(site: Site, keycloak: Keycloak) -> None:
    old = keycloak.ask_client_token(ROBOT, ROBOT_SECRET)
    verifier = site.sign_in.verifier
    await verifier.verify_token(old)
    keycloak.replace_signing_key()
    new = keycloak.ask_client_token(ROBOT, ROBOT_SECRET)
    # The keys were fetched less than 30 s ago.
    assert await refuse(site, new) is RefusalCode.TOKEN_UNKNOWN_KEY
    site.clock.ahead_s = 31
    assert (await verifier.verify_token(new)).client_id == ROBOT
    assert await refuse(site, old) is RefusalCode.TOKEN_UNKNOWN_KEY


async def test_groups_may_be_the_realms_roles(keycloak: Keycloak, planner_url: str) -> None:
    async with a_site(keycloak, planner_url, oidc_groups_claim="realm_access.roles") as site:
        token = keycloak.ask_client_token(ROBOT, ROBOT_SECRET)
        person = await site.sign_in.verifier.verify_token(token)
    assert "default-roles-data" in person.groups
    assert site.sign_in.config.audiences[0] == AUDIENCE
