"""Secrets from AWS Secrets Manager, from Systems Manager, and from mounted files."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.support.working import Bench, bench, command_of

from noetl_contracts.requests.facts import CommandCompleted, CommandFailed

SECRET = "blaumeise-4711-geheim"  # noqa: S105 - a value for the test
REGION = "eu-central-1"
LENGTHS = (
    "- step: s\n  tool: {kind: python, input: {found: '{{ %s }}'},"
    " code: \"result = {'n': len(found), 'first': found[:1]}\"}\n"
)


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """The address of AWS's services, emulated."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture(scope="module")
def account(aws: str) -> dict[str, str]:
    found = {
        "endpoint": aws,
        "region": REGION,
        "access_key": "AKIAEXAMPLE",
        "secret_key": "secret-of-the-account-4711",
    }

    def client(service: str) -> Any:
        return boto3.session.Session().client(
            service,
            region_name=REGION,
            endpoint_url=aws,
            aws_access_key_id=found["access_key"],
            aws_secret_access_key=found["secret_key"],
        )

    secrets, parameters = client("secretsmanager"), client("ssm")
    secrets.create_secret(Name="prod/plain", SecretString=SECRET)
    secrets.create_secret(
        Name="prod/db", SecretString=f'{{"user": "ann", "login": {{"password": "{SECRET}"}}}}'
    )
    secrets.create_secret(Name="prod/bytes", SecretBinary=b"\xff\xfe")
    parameters.put_parameter(Name="/prod/db/password", Value=SECRET, Type="SecureString")
    return found


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    folder = tmp_path / "secrets"
    (folder / "db").mkdir(parents=True)
    (folder / "db/password").write_text(f"{SECRET}\n")
    (folder / "link").symlink_to(folder / "db/password")
    (folder / "bytes").write_bytes(b"\xff\xfe")
    (folder / "large").write_bytes(b"x" * (64 * 1024 + 1))
    (tmp_path / "outside").write_text("not to be read")
    (folder / "out").symlink_to(tmp_path / "outside")
    async with bench(secret_folder=str(folder)) as found:
        yield found


def managed(provider: str, place: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "app",
        "kind": "secret_manager",
        "fields": {"provider": provider, "map": {"pw": place}, **fields},
    }


async def run(worker: Bench, definition: dict[str, Any]) -> Any:
    command = command_of(LENGTHS % "keychain.app.pw", keychain=[definition])
    (*_, last) = await worker.run(command)
    return last


@pytest.mark.parametrize(
    ("provider", "place"),
    [
        ("aws", "prod/plain"),
        ("aws", "prod/db#login.password"),
        ("aws_ssm", "/prod/db/password"),
    ],
)
async def test_a_secret_of_aws_reaches_a_task(
    worker: Bench, account: dict[str, str], provider: str, place: str
) -> None:
    await worker.put_credential("cloud", account, kind="aws")
    completed = await run(worker, managed(provider, place, auth="cloud"))
    assert isinstance(completed, CommandCompleted), completed
    assert SECRET not in str(completed)
    assert str(len(SECRET)) in str(completed)


@pytest.mark.parametrize(
    ("provider", "place", "kind", "says_what"),
    [
        ("aws", "prod/gone", "config", "AWS answers ResourceNotFoundException for 'prod/gone'"),
        ("aws", "prod/db#pasword", "config", "secret 'prod/db' has no key 'pasword'"),
        ("aws", "prod/plain#user", "config", "secret 'prod/plain' is no JSON"),
        ("aws", "prod/bytes", "config", "secret 'prod/bytes' is no text"),
        ("aws_ssm", "/prod/gone", "config", "AWS answers ParameterNotFound for '/prod/gone'"),
    ],
)
async def test_what_aws_does_not_have_is_told(
    worker: Bench, account: dict[str, str], provider: str, place: str, kind: str, says_what: str
) -> None:
    await worker.put_credential("cloud", account, kind="aws")
    failed = await run(worker, managed(provider, place, auth="cloud"))
    assert isinstance(failed, CommandFailed), failed
    assert failed.error.kind == kind
    assert says_what in failed.error.message
    assert SECRET not in str(failed)


async def test_an_address_where_nobody_answers_may_be_tried_again(
    worker: Bench, account: dict[str, str]
) -> None:
    await worker.put_credential("cloud", {**account, "endpoint": "http://127.0.0.1:1"}, kind="aws")
    failed = await run(worker, managed("aws", "prod/plain", auth="cloud"))
    assert isinstance(failed, CommandFailed), failed
    assert (failed.error.kind, failed.error.retryable) == ("connection", True)
    assert account["secret_key"] not in str(failed)


async def test_only_a_stored_account_is_used(worker: Bench, account: dict[str, str]) -> None:
    inline = managed("aws", "prod/plain", auth={"type": "aws", **account})
    for definition in (inline, managed("aws", "prod/plain")):
        failed = await run(worker, definition)
        assert isinstance(failed, CommandFailed), failed
        assert failed.error.kind == "config"
        assert "of type aws" in failed.error.message


@pytest.mark.parametrize("name", ["db/password", "link"])
async def test_a_mounted_file_is_a_secret(worker: Bench, name: str) -> None:
    completed = await run(worker, managed("file", name))
    assert isinstance(completed, CommandCompleted), completed
    assert str(len(SECRET)) in str(completed)


@pytest.mark.parametrize(
    ("name", "says_what"),
    [
        ("gone", "No such file"),
        ("../outside", "is not below"),
        ("out", "is not below"),
        ("/etc/hostname", "is not below"),
        ("db", "directory"),
        ("bytes", "is no text"),
        ("large", "more than 65536 bytes"),
    ],
)
async def test_other_files_are_none(worker: Bench, name: str, says_what: str) -> None:
    failed = await run(worker, managed("file", name))
    assert isinstance(failed, CommandFailed), failed
    assert failed.error.kind == "config"
    assert says_what in failed.error.message


async def test_without_a_folder_no_file_is_read() -> None:
    async with bench() as worker:
        failed = await run(worker, managed("file", "db/password"))
    assert isinstance(failed, CommandFailed), failed
    assert "NOETL_WORKER_SECRET_FOLDER" in failed.error.message
