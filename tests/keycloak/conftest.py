"""One Keycloak for all tests, and a planner and a browser for each of them."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.keycloak import Keycloak, KeycloakBrowser, running_keycloak
from tests.support.signing_in import Site, a_site, find_free_port


@pytest.fixture(scope="session")
def planner_url() -> str:
    """Where every planner of these tests is reached: the realm knows one address."""
    return f"http://127.0.0.1:{find_free_port()}"


@pytest.fixture(scope="session")
def keycloak(planner_url: str) -> Iterator[Keycloak]:
    with running_keycloak(planner_url) as server:
        yield server


@pytest.fixture
async def site(keycloak: Keycloak, planner_url: str) -> AsyncIterator[Site]:
    async with a_site(keycloak, planner_url) as opened:
        yield opened


@pytest.fixture
async def browser() -> AsyncIterator[KeycloakBrowser]:
    opened = KeycloakBrowser()
    yield opened
    await opened.close()
