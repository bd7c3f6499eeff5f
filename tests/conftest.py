"""Markers from folder names, whose turn it is, and real servers, started when first asked for."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support import lanes
from tests.support.container_servers import open_nats, open_postgres, open_s3
from tests.support.java import BRIEF
from tests.support.servers import NatsServer, PostgresServer, S3Server

os.environ.update(BRIEF)
# Services that a test starts let its clients in. Whole stacks do not: clients send a token.
os.environ.setdefault("NOETL_AUTH", "off-on-loopback")
# Tests have no contexts and no sign-ins but their own: not even root makes a folder there.
os.environ["NOETL_CONFIG"] = "/proc/nonexistent/noetl"

LONG_EXAMPLES = 5_000
# A busy machine is slow, which is no defect: examples are counted, never timed.
settings.register_profile("change", deadline=None)
settings.register_profile("long", max_examples=LONG_EXAMPLES, deadline=None)
settings.load_profile("change")

TESTS = Path(__file__).parent
MARKED = {
    "unit",
    "property",
    "conformance",
    "integration",
    "security",
    "simulation",
    "e2e",
    "chaos",
    "architecture",
    "acceptance",
    "delivery",
    "containers",
    "charts",
    "console",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parts = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ()
        if parts and parts[0] in MARKED:
            item.add_marker(parts[0])
    items.sort(key=lambda item: lanes.turn(item.path))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The session's PostgreSQL: share it, and do not stop it."""
    with open_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The session's NATS: share it, and do not stop it."""
    with open_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The session's S3: share it, and do not stop it."""
    with open_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[str]:
    """The superuser's DSN of an empty database, which is the test's alone."""
    name = await postgres.take_empty_database()
    yield postgres.admin_dsn(name)
    await postgres.give_database_back(name)
