"""Credentials of a wrong shape: named, with what is wrong, and not tried again."""

from typing import Any

import pytest
from tests.support.calls import call_of
from tests.support.working import bench

from noetl_worker.tools.calls.call import Outcome

SECRET = "s3cret-text"  # noqa: S105 - looked for in messages
KEYS = {"access_key": "a", "secret_key": "b"}


async def used(kind: str, tool: str, credential: dict[str, Any], **fields: Any) -> Outcome:
    async with bench() as worker:
        await worker.put_credential("theirs", credential, kind=kind)
        return await worker.tools.run(call_of(tool, fields, auth="theirs", timeout_s=10))


def check(outcome: Outcome, names: str) -> None:
    error = outcome.error
    assert error is not None
    assert (error.kind, error.retryable) == ("config", False), error
    assert names in error.message
    assert SECRET not in error.message


@pytest.mark.parametrize(
    ("credential", "names"),
    [
        *[({"host": "h", "port": item}, "'port'") for item in ("abc", 700_000, [1], -1, 1.5)],
        ({"host": "h", "db_port": "abc"}, "'port'"),
        ({"host": ["h"]}, "'host'"),
        ({"host": "127.0.0.1", "password": {"p": SECRET}}, "'password'"),
        ({"host": "127.0.0.1", "sslmode": "sideways"}, "sslmode"),
        ({"host": "127.0.0.1", "sslmode": ["require"]}, "sslmode"),
        ({"dsn": 5}, "'dsn'"),
        ({"dsn": "nonsense"}, "'dsn'"),
        ({"dsn": f"postgresql://ann:pass@{SECRET}:word@h/db"}, "'dsn'"),
        ({"dsn": f"postgresql://ann:{SECRET}@[h/db"}, "'dsn'"),
    ],
)
async def test_a_database_that_a_credential_does_not_name(
    credential: dict[str, Any], names: str
) -> None:
    outcome = await used("postgres", "postgres", credential, query="select 1")
    check(outcome, names)
    check(outcome, "'theirs'")


@pytest.mark.parametrize(
    ("credential", "names"),
    [
        ({}, "access_key"),
        ({"access_key": "a", "secret_key": [SECRET]}, "secret_key"),
        *[
            ({"endpoint": item, **KEYS}, "endpoint")
            for item in ("::", 5, "http://h:abc", "ftp://h")
        ],
        *[({"region": item, **KEYS}, "region") for item in ({"x": 1}, "a b/")],
    ],
)
async def test_a_bucket_that_a_credential_does_not_open(
    credential: dict[str, Any], names: str
) -> None:
    check(await used("s3", "artifact", credential, action="get", uri="s3://bucket/key"), names)


@pytest.mark.parametrize(
    ("kind", "credential", "names"),
    [
        ("bearer", {}, "'token'"),
        ("bearer", {"token": {"a": SECRET}}, "'token'"),
        ("basic", {"password": SECRET}, "'username'"),
        ("api_key", {"header": "X-Key"}, "'value'"),
        ("oauth2", {"client_id": "x"}, "token_url"),
    ],
)
async def test_a_request_that_a_credential_does_not_sign(
    kind: str, credential: dict[str, Any], names: str
) -> None:
    outcome = await used(kind, "http", credential, url="http://127.0.0.1:9/")
    check(outcome, names)
    check(outcome, "'theirs'")
