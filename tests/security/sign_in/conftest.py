"""One provider for all files, and a planner and a browser for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.identity_provider import IdentityProvider, a_key, identity_provider
from tests.support.signing_in import Browser, Site, a_site, find_free_port


@pytest.fixture(scope="session")
def planner_url() -> str:
    """Where every planner of these tests is reached: the provider knows one address."""
    return f"http://127.0.0.1:{find_free_port()}"


@pytest.fixture(scope="session")
def running_provider(planner_url: str) -> Iterator[IdentityProvider]:
    with identity_provider(planner_url) as provider:
        yield provider


@pytest.fixture
def provider(running_provider: IdentityProvider) -> IdentityProvider:
    """The provider, with its first key."""
    if [key.kid for key in running_provider.keys] != ["k1"]:
        running_provider.replace_keys(a_key("k1"))
    return running_provider


@pytest.fixture
async def site(provider: IdentityProvider, planner_url: str) -> AsyncIterator[Site]:
    async with a_site(provider, planner_url) as opened:
        yield opened


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    opened = Browser()
    yield opened
    await opened.close()
