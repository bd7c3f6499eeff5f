"""Tests of credentials at real servers: what opens, what does not, and what each says."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.support.calls import call_of
from tests.support.servers import NatsServer
from tests.support.working import bench

from noetl_contracts.credentials import TYPES
from noetl_contracts.errors import ErrorObject
from noetl_worker.tools.calls.call import Outcome

SECRET = "blaumeise-4711-geheim"  # noqa: S105 - looked for in what is told
NOWHERE = "127.0.0.1:9"


class Guarded(BaseHTTPRequestHandler):
    """`/open` for everybody, `/me` for the secret alone, `/token`, Vault's look-up, a redirect."""

    def do_GET(self) -> None:
        if self.path == "/open":
            return self._say(200)
        if self.path == "/moved":
            return self._say(302, location="/me")
        if self.path == "/v1/auth/token/lookup-self":
            if self.headers.get("X-Vault-Token") != SECRET:
                return self._say(403)
            body = f'{{"data": {{"id": "{SECRET}", "ttl": 60, "policies": ["app"]}}}}'
            return self._say(200, body)
        given = self.headers.get("Authorization", "") + self.headers.get("X-Key", "")
        return self._say(200 if SECRET in given or "YW5uOm" in given else 401)

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if SECRET in form:
            return self._say(200, f'{{"access_token": "{SECRET}-token", "expires_in": 60}}')
        return self._say(401)

    def _say(self, status: int, body: str = "{}", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guarded)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    boto3.session.Session().client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket="full")
    yield endpoint
    server.stop()


async def run_test(kind: str, fields: dict[str, Any], **given: Any) -> Outcome:
    async with bench() as worker:
        await worker.put_credential("theirs", fields, kind=kind)
        outcome = await worker.tools.run(call_of("credential_test", given, auth="theirs"))
    assert SECRET not in str(outcome)
    return outcome


async def found_by(kind: str, fields: dict[str, Any], **given: Any) -> dict[str, Any]:
    outcome = await run_test(kind, fields, **given)
    assert outcome.error is None, outcome.error
    data = outcome.data
    assert isinstance(data, dict)
    assert (data["credential"], data["type"], data["version"]) == ("theirs", kind, 1)
    assert data.pop("latency_ms") >= 0
    return data


async def error_of(kind: str, fields: dict[str, Any], **given: Any) -> ErrorObject:
    error = (await run_test(kind, fields, **given)).error
    assert error is not None
    return error


async def test_a_database_says_its_version_user_and_name(database: str) -> None:
    found = await found_by("postgres", {"dsn": database})
    assert found["server"].startswith("PostgreSQL 1")
    parts = urlsplit(database)
    assert (found["user"], found["database"]) == (parts.username, parts.path.lstrip("/"))
    assert found["is_encrypted"] is False


async def test_what_a_database_refuses_is_told_with_the_way_out(database: str) -> None:
    parts = urlsplit(database)
    wrong = f"postgresql://{parts.username}:{SECRET}@{parts.hostname}:{parts.port}{parts.path}"
    refused = await error_of("postgres", {"dsn": wrong})
    assert (refused.kind, refused.pg_code) == ("auth", "28P01")
    assert "check user and password" in refused.message
    absent = await error_of("postgres", {"dsn": f"{database}_absent"})
    assert absent.pg_code == "3D000"
    assert "check the database of the credential" in absent.message
    away = await error_of("postgres", {"dsn": f"postgresql://ann:{SECRET}@{NOWHERE}/d"})
    assert away.kind == "db_connection"
    assert "check host, port and sslmode" in away.message


async def test_a_nats_server_says_its_version_and_whether_jetstream_answers(
    nats: NatsServer,
) -> None:
    found = await found_by("nats", {"url": nats.url})
    assert found["server"].startswith("NATS 2.")
    assert found["jetstream"] is True


async def test_a_nats_server_that_is_not_there_is_told() -> None:
    error = await error_of("nats", {"url": f"nats://ann:{SECRET}@{NOWHERE}"})
    assert error.kind == "connection"


SIGNED: list[tuple[str, dict[str, Any]]] = [
    ("bearer", {"token": SECRET}),
    ("httpBearerAuth", {"token": SECRET}),
    ("basic", {"username": "ann", "password": SECRET}),
    ("api_key", {"header": "X-Key", "value": SECRET}),
]


@pytest.mark.parametrize(("kind", "fields"), SIGNED)
async def test_a_request_is_signed_and_compared_with_one_that_is_not(
    site: str, kind: str, fields: dict[str, Any]
) -> None:
    found = await found_by(kind, fields, url=f"{site}/me")
    assert (found["status"], found.get("note")) == (200, None)
    kept = await found_by(kind, {**fields, "test_url": f"{site}/open"})
    assert "proves nothing" in kept["note"]


@pytest.mark.parametrize(("kind", "fields"), SIGNED)
async def test_a_request_without_an_address_is_refused_with_the_way_out(
    kind: str, fields: dict[str, Any]
) -> None:
    error = await error_of(kind, fields)
    assert error.kind == "config"
    assert "--url" in error.message


async def test_what_an_address_refuses_is_told(site: str) -> None:
    refused = await error_of("bearer", {"token": "another"}, url=f"{site}/me")
    assert (refused.kind, refused.status) == ("auth", 401)
    assert "the server refuses the credential" in refused.message
    moved = await error_of("bearer", {"token": SECRET}, url=f"{site}/moved")
    assert "leads elsewhere" in moved.message
    away = await error_of("bearer", {"token": SECRET}, url=f"http://{NOWHERE}/")
    assert away.kind == "connection"


async def test_an_oauth2_client_gets_a_new_token_and_uses_it(site: str) -> None:
    client = {"token_url": f"{site}/token", "client_id": "me", "client_secret": SECRET}
    found = await found_by("oauth2", client, url=f"{site}/me")
    assert found["expires_in"] == 60
    assert found["request"]["status"] == 200
    assert "access_token" not in found
    refused = await error_of("oauth2", {**client, "client_secret": "another"})
    assert (refused.kind, refused.status) == ("auth", 401)


async def test_a_token_of_a_vault_looks_itself_up(site: str) -> None:
    found = await found_by("vault", {"url": site, "token": SECRET})
    assert (found["ttl"], found["policies"]) == (60, ["app"])
    refused = await error_of("vault", {"url": site, "token": "another"})
    assert refused.kind == "auth"


@pytest.mark.parametrize("kind", ["s3", "minio", "gcs_hmac"])
async def test_keys_list_their_buckets_or_one(aws: str, kind: str) -> None:
    keys = {"access_key": "AKIA", "secret_key": SECRET, "endpoint": aws}
    assert (await found_by(kind, keys))["buckets"] == 1
    found = await found_by(kind, keys, url="s3://full")
    assert (found["bucket"], found["is_empty"]) == ("full", True)
    absent = await error_of(kind, keys, url="s3://absent")
    assert absent.kind == "not_found"
    unclear = await error_of(kind, keys, url="full")
    assert unclear.kind == "validation"


async def test_an_account_of_aws_says_whose_keys_they_are(aws: str) -> None:
    keys = {"access_key": "AKIA", "secret_key": SECRET, "endpoint": aws, "region": "eu-central-1"}
    found = await found_by("aws", keys)
    assert found["account"] == "123456789012"
    away = await error_of("aws", {**keys, "endpoint": f"http://{NOWHERE}"})
    assert away.kind == "connection"
    assert "check endpoint and region" in away.message


@pytest.mark.parametrize("kind", [name for name, item in TYPES.items() if item.untestable])
async def test_a_type_that_cannot_be_tested_says_why(kind: str) -> None:
    error = await error_of(kind, {"any": SECRET})
    assert error.kind == "config"
    assert TYPES[kind].untestable in error.message


async def test_every_type_is_tested_or_says_why_not() -> None:
    assert all(bool(item.tested_by) != bool(item.untestable) for item in TYPES.values())


async def test_the_version_that_was_just_stored_is_tested(database: str) -> None:
    async with bench() as worker:
        for version, dsn in enumerate((f"postgresql://a:b@{NOWHERE}/d", database), start=1):
            await worker.put_credential("theirs", {"dsn": dsn}, kind="postgres", version=version)
            outcome = await worker.tools.run(call_of("credential_test", {}, auth="theirs"))
            assert (outcome.error is None) == (version == 2), outcome
