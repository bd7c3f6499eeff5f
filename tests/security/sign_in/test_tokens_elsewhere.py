"""A token of the provider that two installations share opens at each what roles there say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx
import pytest
from msgspec import Struct
from tests.support.identity_provider import CLI, IdentityProvider
from tests.support.signing_in import Browser, Site, a_silent_site, give_role

from noetl_contracts.identity.role_bindings import SubjectKind
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_planner.api.app import create_app
from noetl_planner.identity.authenticator import Authenticator
from noetl_planner.identity.served_tenants import ServedTenants

GLOBEX, OPS = TenantId("globex"), OrganizationId("default")
GLOBEX_AUDIENCE = "https://globex.example.org/api"
# Nobody is sent there: tokens are brought in headers.
GLOBEX_URL = "http://127.0.0.1:1"


class OwnInstallation(Struct, frozen=True, kw_only=True):
    """The installation of one tenant, whose roles are kept in its own database."""

    site: Site
    client: httpx.AsyncClient

    async def call(self, token: str, **headers: str) -> httpx.Response:
        """Ask for executions with a token."""
        proof = {"Authorization": f"Bearer {token}", **headers}
        return await self.client.get("/api/executions", headers=proof)


@asynccontextmanager
async def open_own(provider: IdentityProvider, **changes: object) -> AsyncIterator[OwnInstallation]:
    async with a_silent_site(provider, GLOBEX_URL, **changes) as site:
        services = site.world.services(
            sign_in=site.sign_in,
            clock=site.clock,
            authenticator=Authenticator(site.world.identities, site.clock, sign_in=site.sign_in),
            tenant_id=GLOBEX,
            organization_id=OPS,
            served_tenants=ServedTenants(only=GLOBEX),
        )
        transport = httpx.ASGITransport(app=create_app(services))
        async with httpx.AsyncClient(transport=transport, base_url=GLOBEX_URL) as client:
            yield OwnInstallation(site=site, client=client)


async def call_shared(site: Site, token: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=site.url) as client:
        return await client.get("/api/executions", headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("kind", [SubjectKind.PERSON, SubjectKind.GROUP])
async def test_a_role_at_one_installation_is_none_at_the_other(
    site: Site, provider: IdentityProvider, kind: SubjectKind
) -> None:
    subject = "ann" if kind is SubjectKind.PERSON else "operators"
    await give_role(site, subject, "admin", kind=kind)
    token = provider.forge(sub="ann", groups=["operators"])
    async with open_own(provider) as own:
        assert (await call_shared(site, token)).status_code == HTTPStatus.OK
        answer = await own.call(token)
        assert (answer.status_code, answer.json()["code"]) == (HTTPStatus.FORBIDDEN, "no_role")
        # Nor does it open there what it opens here.
        answer = await own.call(token, **{"X-NoETL-Tenant": site.world.services().tenant_id})
        assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST
        assert answer.json()["code"] == "tenant_elsewhere"


async def test_a_role_of_the_own_installation_opens_that_tenant_alone(
    site: Site, provider: IdentityProvider
) -> None:
    for binding_id in list(site.world.store.role_bindings):
        site.world.store.role_bindings.pop(binding_id)
    token = provider.forge(sub="ann", groups=[])
    async with open_own(provider) as own:
        await give_role(own.site, "ann", "viewer", tenant_id=GLOBEX, organization_id=OPS)
        assert (await own.call(token)).status_code == HTTPStatus.OK
        answer = await call_shared(site, token)
    assert (answer.status_code, answer.json()["code"]) == (HTTPStatus.FORBIDDEN, "no_role")


async def test_a_token_for_another_installation_is_none_here(
    site: Site, provider: IdentityProvider
) -> None:
    """With an audience and clients of its own an installation takes no token of the other's."""
    own_names = {
        "oidc_audiences": (GLOBEX_AUDIENCE,),
        "oidc_client_id": "globex-web",
        "oidc_cli_client_id": "globex-cli",
    }
    async with open_own(provider, **own_names) as own:
        await give_role(own.site, "ann", "viewer", tenant_id=GLOBEX, organization_id=OPS)
        for audience in (CLI, site.sign_in.config.audiences[0]):
            token = provider.forge(sub="ann", groups=[], aud=audience)
            answer = await own.call(token)
            assert answer.status_code == HTTPStatus.UNAUTHORIZED, answer.text
            assert answer.json()["code"] == "token_audience"
        token = provider.forge(sub="ann", groups=[], aud=GLOBEX_AUDIENCE)
        assert (await own.call(token)).status_code == HTTPStatus.OK
        answer = await call_shared(site, token)
        assert answer.json()["code"] == "token_audience"


async def test_a_session_at_one_installation_is_none_at_the_other(
    site: Site, provider: IdentityProvider, browser: Browser
) -> None:
    await browser.sign_in(site, path="/")
    assert (await browser.get(f"{site.url}/api/executions")).status_code == HTTPStatus.OK
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in browser.client.cookies.jar)
    assert cookies
    async with open_own(provider) as own:
        await give_role(own.site, "ann", "viewer", tenant_id=GLOBEX, organization_id=OPS)
        answer = await own.client.get("/api/executions", headers={"Cookie": cookies})
    assert answer.status_code == HTTPStatus.UNAUTHORIZED
