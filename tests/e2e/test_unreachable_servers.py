"""A service whose server does not answer at the start says which one, in one line, and ends."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)

CANARY = "canary-of-the-address"
CLOSED = "127.0.0.1:1"
POSTGRES = f"postgresql://noetl:{CANARY}@{CLOSED}/noetl"
NATS = f"nats://noetl:{CANARY}@{CLOSED}"
S3 = f"s3://payloads?endpoint=http://{CLOSED}&region=us-east-1"
SECRET_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # noqa: S105 - of this test alone
WITHOUT_DATABASE = {"worker"}
WITH_PAYLOADS = {"planner", "worker"}


def refusal(service: str, tmp_path: Path, **fields: str) -> str:
    """Start a service that must give up; return its one line."""
    known_names: dict[str, str] = {"CONNECT_S": "1", **fields}
    if service in WITHOUT_DATABASE:
        known_names.pop("POSTGRES_DSN")
    if service in WITH_PAYLOADS:
        known_names = {"PAYLOAD_URL": tmp_path.as_uri(), "SECRET_KEY": SECRET_KEY, **known_names}
    done = start(service, known_names)
    assert done.returncode == 1, done.stdout + done.stderr
    stdout = done.stdout + done.stderr
    assert "Traceback" not in stdout, stdout
    assert CANARY not in stdout, stdout
    (line,) = [item for item in done.stderr.splitlines() if item.startswith("error: ")]
    return line


def start(service: str, fields: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    own = {f"NOETL_{service.upper()}_{field}": value for field, value in fields.items()}
    return subprocess.run(  # noqa: S603 - our own service
        [sys.executable, "-m", f"noetl_{service}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.defpath, **own},
    )


@pytest.mark.parametrize("service", ["planner", "projector", "outbox", "reaper"])
def test_an_unreachable_postgres_is_named(stack: Stack, tmp_path: Path, service: str) -> None:
    line = refusal(service, tmp_path, POSTGRES_DSN=POSTGRES, NATS_URL=stack.url("nats"))
    assert f"no PostgreSQL at {CLOSED}" in line


@pytest.mark.parametrize("service", ["planner", "worker", "projector", "outbox", "reaper"])
def test_an_unreachable_nats_is_named(stack: Stack, tmp_path: Path, service: str) -> None:
    line = refusal(service, tmp_path, POSTGRES_DSN=stack.url("postgres"), NATS_URL=NATS)
    assert f"NATS at {CLOSED} cannot be used" in line


@pytest.mark.parametrize("service", sorted(WITH_PAYLOADS))
def test_an_unreachable_s3_is_named(stack: Stack, tmp_path: Path, service: str) -> None:
    line = refusal(
        service,
        tmp_path,
        POSTGRES_DSN=stack.url("postgres"),
        NATS_URL=stack.url("nats"),
        PAYLOAD_URL=S3,
        PAYLOAD_ACCESS_KEY="somebody",
        PAYLOAD_SECRET_KEY=CANARY,
    )
    assert f"no S3 at http://{CLOSED}" in line


def test_a_port_in_use_is_named_with_its_setting(stack: Stack, tmp_path: Path) -> None:
    port = stack.state["ports"]["planner-1.http"]
    line = refusal(
        "planner",
        tmp_path,
        POSTGRES_DSN=stack.url("postgres"),
        NATS_URL=stack.url("nats"),
        HTTP_PORT=str(port),
        # Where nobody could sign in, it would give up before it listens.
        OWNER_TOKEN_SHA256="0" * 64,
    )
    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert "NOETL_PLANNER_HTTP_PORT" in line


def test_a_stack_whose_port_is_in_use_says_which_and_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "other")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        try:
            answer = stack.noetl("up", "--no-s3", "--set", f"PLANNER_HTTP_PORT={port}", code=1)
        finally:
            stack.noetl("down", "--purge")
    assert f"cannot listen on 127.0.0.1:{port}" in answer
    assert "NOETL_PLANNER_HTTP_PORT" in answer


def test_a_stack_on_somebody_elses_postgres_that_is_away_says_so(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "other")
    try:
        answer = stack.noetl("up", "--no-s3", "--postgres", POSTGRES, code=1)
    finally:
        stack.noetl("down", "--purge")
    assert CLOSED in answer
    assert CANARY not in answer
    assert "Check the address" in answer
