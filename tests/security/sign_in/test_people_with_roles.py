"""People of a real provider have the roles of their subject and groups, and no others."""

import time
from http import HTTPStatus

import httpx
from tests.support.identity_provider import IdentityProvider
from tests.support.polling import eventually
from tests.support.signing_in import Browser, Site, give_role

from noetl_contracts.identity.role_bindings import SubjectKind


async def find_csrf_token(site: Site, browser: Browser) -> str:
    token: str = (await browser.get(f"{site.url}/auth/session")).json()["csrf_token"]
    return token


async def is_answered(site: Site, browser: Browser, path: str) -> bool:
    return (await browser.get(f"{site.url}{path}")).status_code == HTTPStatus.OK


async def call(site: Site, token: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=site.url) as client:
        return await client.get(path, headers={"Authorization": f"Bearer {token}"})


async def test_a_session_has_the_roles_of_its_person_and_groups(
    site: Site, browser: Browser
) -> None:
    await browser.sign_in(site, path="/")
    who = (await browser.get(f"{site.url}/api/auth/whoami")).json()
    assert (who["kind"], who["id"], who["via"]) == ("person", "ann", "console")
    assert who["roles"] == ["viewer"]
    assert (await browser.get(f"{site.url}/api/keys")).status_code == HTTPStatus.FORBIDDEN
    await give_role(site, "operators", "admin", kind=SubjectKind.GROUP)
    # Roles are remembered for some seconds.
    await eventually(lambda: is_answered(site, browser, "/api/keys"))


async def test_a_write_of_a_session_needs_its_token(site: Site, browser: Browser) -> None:
    await give_role(site, "ann", "admin")
    await browser.sign_in(site, path="/")
    url, body = f"{site.url}/api/keys", {"account": "ci"}
    for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "0" * 64}):
        refused = await browser.post(url, json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (HTTPStatus.FORBIDDEN, "csrf_token")
    token = await find_csrf_token(site, browser)
    made = await browser.post(url, json=body, headers={"X-CSRF-Token": token})
    assert made.status_code == HTTPStatus.OK, made.text
    (record,) = site.world.store.administration.popitem()[1][-1:]
    assert (record.action, record.actor.name) == ("key.created", "Name of ann")
    assert record.actor.issuer == site.sign_in.config.issuer


async def test_a_token_of_a_person_opens_the_api_with_its_roles(
    site: Site, provider: IdentityProvider
) -> None:
    token = provider.forge(sub="ann", groups=["operators"])
    who = (await call(site, token, "/api/auth/whoami")).json()
    assert (who["kind"], who["id"], who["roles"]) == ("person", "ann", ["viewer"])
    assert (await call(site, token, "/api/executions")).status_code == HTTPStatus.OK
    assert (await call(site, token, "/api/retention/policy")).status_code == HTTPStatus.FORBIDDEN


async def test_somebody_without_a_role_gets_nothing(site: Site, provider: IdentityProvider) -> None:
    token = provider.forge(sub="eve", groups=[])
    answer = await call(site, token, "/api/executions")
    assert (answer.status_code, answer.json()["code"]) == (HTTPStatus.FORBIDDEN, "no_role")
    # Who they are is told, and no name of a tenant.
    who = (await call(site, token, "/api/auth/whoami")).json()
    assert (who["id"], who["tenant"], who["organization"], who["roles"]) == ("eve", "", "", [])


async def test_a_role_of_another_issuers_ann_is_not_this_anns(
    site: Site, provider: IdentityProvider
) -> None:
    for binding in list(site.world.store.role_bindings.values()):
        site.world.store.role_bindings.pop(binding.binding_id)
    answer = await call(site, provider.forge(sub="ann", groups=[]), "/api/executions")
    assert answer.status_code == HTTPStatus.FORBIDDEN


async def test_groups_are_kept_as_the_provider_gave_them_last(
    site: Site, provider: IdentityProvider, browser: Browser
) -> None:
    await browser.sign_in(site, path="/")
    await browser.get(f"{site.url}/api/auth/whoami")
    issuer = site.sign_in.config.issuer
    kept = await site.world.identities.find_groups(issuer=issuer, subject="ann")
    assert kept is not None
    assert "operators" in kept.groups
    # The next sign-in, without the group.
    now_s = int(time.time()) + 5
    await call(site, provider.forge(sub="ann", groups=[], iat=now_s), "/api/auth/whoami")
    after = await site.world.identities.find_groups(issuer=issuer, subject="ann")
    assert after is not None
    assert after.groups == ()
