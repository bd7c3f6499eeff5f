"""A planner whose people sign in at a provider, and the browser of one of them."""

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from urllib.parse import urljoin

import httpx
from tests.support.api import SECRET_KEY, ApiWorld
from tests.support.identity_provider import AUDIENCE, CLI, WEB, WEB_SECRET
from tests.support.storage import ORGANIZATION, TENANT

from noetl_chassis.clock import Clock, SystemClock
from noetl_contracts.identity.role_bindings import RoleBinding, SubjectKind
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_planner.api import server
from noetl_planner.api.app import create_app
from noetl_planner.identity.authenticator import Authenticator
from noetl_planner.identity.openid.sign_in import SignIn, open_sign_in
from noetl_planner.settings import Settings, parse_oidc
from noetl_storage.memory.identities import MemorySessions
from noetl_storage.ports.registry_ports import Sessions

HOPS_MAX = 12
PORT_WAIT_S = 30
# Below those that the system gives to connections.
PORTS = range(20_000, 32_000)
PORTS_TRIED_MAX = 100


class MovableClock:
    """The machine's clock, moved on by a test."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.ahead_s = 0.0

    def now(self) -> datetime:
        return self._clock.now() + timedelta(seconds=self.ahead_s)

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s() + self.ahead_s


class Provider(Protocol):
    """Where people of a test sign in."""

    @property
    def issuer(self) -> str:
        """The issuer that its tokens name."""


@dataclass
class Site:
    """A planner that signs people in, at its address."""

    url: str
    world: ApiWorld
    clock: MovableClock
    sign_in: SignIn


def find_free_port() -> int:
    """A port that no connection of another process is given meanwhile, and that is free now."""
    for _ in range(PORTS_TRIED_MAX):
        port = random.choice(PORTS)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {PORTS} is free")


def a_settings(issuer: str, public_url: str, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "nats_url": "nats://127.0.0.1:1",
        "postgres_dsn": "postgresql://127.0.0.1:1/none",
        "payload_url": "memory://",
        "secret_key": SECRET_KEY,
        "oidc_issuer": issuer,
        "oidc_client_id": WEB,
        "oidc_client_secret": WEB_SECRET,
        "oidc_cli_client_id": CLI,
        "oidc_audiences": (AUDIENCE,),
        "oidc_scopes": ("openid", "profile", "email", "groups"),
        "public_url": public_url,
        **changes,
    }
    return Settings(**values)


def open_from_settings(
    config: Settings, sessions: Sessions, clock: Clock
) -> AbstractAsyncContextManager[SignIn | None]:
    """Open a sign-in as the planner does."""
    return open_sign_in(
        parse_oidc(config), secret_key=config.secret_key, sessions=sessions, clock=clock
    )


@asynccontextmanager
async def a_silent_site(provider: Provider, url: str, **changes: Any) -> AsyncIterator[Site]:
    """A planner's sign-in without its API."""
    world, clock = ApiWorld(), MovableClock()
    config = a_settings(provider.issuer, url, **changes)
    async with open_from_settings(config, MemorySessions(world.store), clock) as sign_in:
        assert sign_in is not None
        yield Site(url=url, world=world, clock=clock, sign_in=sign_in)


async def give_role(
    site: Site,
    subject: str,
    role: str,
    *,
    kind: SubjectKind = SubjectKind.PERSON,
    tenant_id: TenantId = TENANT,
    organization_id: OrganizationId = ORGANIZATION,
) -> None:
    """Bind a role to somebody, or a group, of the site's provider."""
    await site.world.identities.put_binding(
        RoleBinding(
            binding_id=str(len(site.world.store.role_bindings) + 1),
            tenant_id=tenant_id,
            organization_id=organization_id,
            subject_kind=kind,
            subject=subject,
            issuer=site.sign_in.config.issuer,
            role=role,
        )
    )


@asynccontextmanager
async def a_site(provider: Provider, url: str, **changes: Any) -> AsyncIterator[Site]:
    """Serve a planner's API, over memory, at an address that the provider knows."""
    stop, started = asyncio.Event(), asyncio.Event()
    async with a_silent_site(provider, url, **changes) as site, asyncio.TaskGroup() as tasks:
        await give_role(site, "ann", "viewer")
        authenticator = Authenticator(site.world.identities, site.clock, sign_in=site.sign_in)
        services = site.world.services(
            sign_in=site.sign_in, clock=site.clock, authenticator=authenticator
        )
        tasks.create_task(
            server.serve_api(
                create_app(services),
                host="127.0.0.1",
                port=int(url.rpartition(":")[2]),
                stop=stop,
                started=lambda _: started.set(),
            )
        )
        await asyncio.wait_for(started.wait(), PORT_WAIT_S)
        try:
            yield site
        finally:
            stop.set()


class Browser:
    """A browser: cookies, redirections one by one, and the provider's forms."""

    def __init__(self) -> None:
        self.client = httpx.AsyncClient(follow_redirects=False, trust_env=False)

    async def close(self) -> None:
        await self.client.aclose()

    async def get(self, address: str, **options: Any) -> httpx.Response:
        return await self.client.get(address, **options)

    async def post(self, address: str, **options: Any) -> httpx.Response:
        return await self.client.post(address, **options)

    async def walk_until(
        self,
        address: str,
        end: str,
        *,
        login: str = "ann",
        is_granted: bool = True,
    ) -> str:
        """Follow redirections and fill forms until one leads to an address that begins so."""
        for _ in range(HOPS_MAX):
            if address.startswith(end):
                return address
            answer = await self.get(address)
            while not answer.is_redirect:
                assert answer.status_code == 200, answer.text
                answer = await self.submit_form(answer, login, is_granted=is_granted)
            address = urljoin(str(answer.url), answer.headers["location"])
        raise AssertionError(f"{HOPS_MAX} redirections do not lead to {end}: {address}")

    async def submit_form(
        self, page: httpx.Response, login: str, *, is_granted: bool
    ) -> httpx.Response:
        if not is_granted:
            match = re.search(r'href="([^"]*/abort)"', page.text)
            assert match is not None, page.text
            return await self.get(urljoin(str(page.url), match[1]))
        form = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        assert form is not None, page.text
        fields = {}
        for tag in re.findall(r"<input[^>]*>", page.text):
            named = dict(re.findall(r'(name|value)="([^"]*)"', tag))
            if "name" in named:
                fields[named["name"]] = named.get("value", "")
        if 'name="login"' in page.text:
            fields |= {"login": login, "password": "any"}
        return await self.post(urljoin(str(page.url), form[1]), data=fields)

    async def sign_in(self, site: Site, *, login: str = "ann", path: str = "/") -> httpx.Response:
        """Go to the planner's sign-in, through the provider, and back; return the last answer."""
        back = await self.come_back(site, login=login, path=path)
        return await self.get(back)

    async def come_back(self, site: Site, *, login: str = "ann", path: str = "/") -> str:
        """Go through the provider; return the address that it sends the browser back to."""
        begun = await self.get(f"{site.url}/auth/login", params={"next": path})
        assert begun.status_code == 303, begun.text
        return await self.walk_until(
            begun.headers["location"], f"{site.url}/auth/callback", login=login
        )
