"""A service on a database that nobody has prepared ends, and names the job that does it."""

from collections.abc import Iterator

import pytest
from tests.support.container_servers import contained_nats, contained_postgres
from tests.support.containers import run_docker
from tests.support.servers import NatsServer, PostgresServer

SETTINGS = {
    "HEALTH_PORT": "0",
    "PAYLOAD_URL": "file:///tmp/payloads",
    "SECRET_KEY": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
}
TAKEN = {"planner": ("PAYLOAD_URL", "SECRET_KEY"), "projector": (), "outbox": (), "reaper": ()}


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with contained_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with contained_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.mark.parametrize("service", TAKEN)
def test_an_empty_database_is_refused_by_name(
    service: str, postgres: PostgresServer, nats: NatsServer
) -> None:
    prefix = f"NOETL_{service.upper()}_"
    told = {name: SETTINGS[name] for name in ("HEALTH_PORT", *TAKEN[service])}
    told |= {"POSTGRES_DSN": postgres.admin_dsn(), "NATS_URL": nats.url_for(service)}
    variables = [f"--env={prefix}{name}={value}" for name, value in told.items()]
    with pytest.raises(AssertionError) as refused:
        run_docker("run", "--rm", "--network", "host", *variables, f"noetl-{service}")
    said = str(refused.value)
    assert "the database has no schema" in said
    assert "the job `migrate`" in said
    assert "Traceback" not in said
