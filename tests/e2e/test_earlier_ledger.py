"""A ledger of before identity, upgraded: everything goes on, and who asked is unknown."""

import asyncio
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.support.asking import http
from tests.support.servers import PostgresServer, postgres_server, wait_until
from tests.support.stack import PATIENCE_S, Stack, running_stack

from noetl_cli.stack.processes import loopback
from noetl_contracts.identity.actors import ANSWERS
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database

CORPUS = Path(__file__).parents[1] / "corpus" / "earlier_ledger"
# The schema that the ledger was written on.
EARLIER_STEP = 38
SECRET = "nobody guesses"  # noqa: S105 - the corpus was made with it


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server of its own, since roles belong to servers."""
    with postgres_server(tmp_path_factory.mktemp("earlier"), is_durable=True) as server:
        yield server


@pytest.fixture(scope="module")
def dsn(cluster: PostgresServer) -> str:
    """A database as the earlier release left it."""
    password_by_role = json.loads((CORPUS / "secrets.json").read_text())["postgres_by_role"]
    for role, password in password_by_role.items():
        cluster.execute(f"create role {role} login password '{password}'")
    cluster.execute("create database noetl owner noetl_owner")
    owner = "noetl_owner"
    own = cluster.dsn(user=owner, password=password_by_role[owner], database="noetl")
    dsn = cluster.admin_dsn("noetl")
    asyncio.run(load_earlier_ledger(own, dsn))
    return dsn


async def load_earlier_ledger(own_dsn: str, admin_dsn: str) -> None:
    steps = migrate.list_migrations()[:EARLIER_STEP]
    async with open_database(own_dsn, must_be_durable=False) as database:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrate, "list_migrations", lambda: steps)
            assert len(await migrate.apply_migrations(database)) == EARLIER_STEP
    connection = await asyncpg.connect(admin_dsn)
    try:
        await connection.execute((CORPUS / "ledger.sql").read_text("utf-8"))
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def stack(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Today's services on that database, in the folder of that stack."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(CORPUS / "secrets.json", home / "secrets.json")
    with closing(tarfile.open(CORPUS / "payloads.tar.gz")) as archive:
        archive.extractall(home / "payloads", filter="data")
    with running_stack(home, "--no-s3", "--postgres", dsn) as started:
        yield started


def ask(stack: Stack, method: str, path: str, **rest: Any) -> httpx.Response:
    answer = http.request(method, f"{stack.url('api')}{path}", timeout=30, **rest)
    assert answer.is_success, answer.text
    return answer


def list_executions(stack: Stack) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = ask(stack, "GET", "/api/executions").json()["executions"]
    return listed


def wait_for_end(stack: Stack, execution_id: str) -> str:
    address = f"/api/executions/{execution_id}/status"

    def has_ended() -> bool:
        return ask(stack, "GET", address).json()["status"] in {"COMPLETED", "FAILED"}

    wait_until(has_ended, timeout_s=PATIENCE_S, what=f"{execution_id} ends")
    return str(ask(stack, "GET", address).json()["status"])


def find_earlier(stack: Stack, path: str, status: str) -> str:
    return next(
        row["execution_id"]
        for row in list_executions(stack)
        if (row["path"], row["status"]) == (path, status)
    )


def test_every_history_verifies(stack: Stack, tmp_path: Path) -> None:
    rows = list_executions(stack)
    assert {row["status"] for row in rows} == {"COMPLETED", "FAILED", "CANCELLED", "RUNNING"}
    for number, row in enumerate(rows):
        command = run_command(
            stack, "replay", "verify", row["execution_id"], "--output", str(tmp_path / str(number))
        )
        assert "unchanged, and agrees with every other" in command, command


def run_command(stack: Stack, *words: str, code: int = 0) -> str:
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "noetl_cli", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={
            "PATH": os.defpath,
            "HOME": str(stack.folder.parent),
            "NOETL_HOME": str(stack.folder),
        },
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_chain_of_checksums_holds(stack: Stack) -> None:
    rows = list_executions(stack)
    for row in rows:
        place = {"tenant_id": "default", "organization_id": "default"}
        address = f"/api/audit/executions/{row['execution_id']}"
        answer = http.get(f"{stack.url('api')}{address}", params=place, timeout=30)
        assert answer.is_success, answer.text
        assert answer.json()["findings"] == [], answer.text
    assert len(rows) > len({row["path"] for row in rows})


def test_who_asked_is_unknown(stack: Stack) -> None:
    answered = 0
    ledger = (CORPUS / "ledger.sql").read_text("utf-8")
    # Other tests begin executions of today.
    rows = [row for row in list_executions(stack) if row["execution_id"] in ledger]
    for row in rows:
        events = ask(stack, "GET", f"/api/executions/{row['execution_id']}/events").json()
        for event in events["events"]:
            if event["event_type"] in ANSWERS:
                assert event["actor"]["kind"] == "unknown", event
                answered += 1
    assert answered > len(rows) > 1


def test_what_administers_is_recorded_from_now_on(stack: Stack) -> None:
    ask(stack, "POST", "/api/schedules/nightly/pause")
    ask(stack, "POST", "/api/schedules/nightly/resume")
    command = run_command(stack, "audit", "log")
    assert "schedule.paused" in command
    assert "schedule.resumed" in command


def test_a_payload_of_before_is_read(stack: Stack) -> None:
    execution_id = find_earlier(stack, "old/large", "COMPLETED")
    result = ask(stack, "GET", f"/api/result/{execution_id}/start").json()
    assert result["data"]["text"] == "x" * 300_000


def test_what_starts_playbooks_starts_them_still(stack: Stack) -> None:
    body = b'{"n": 1}'
    now = str(int(time.time()))
    text = f"POST\norders\n\n{now}\n".encode() + body
    digest = hmac.new(SECRET.encode(), text, hashlib.sha256).hexdigest()
    signed = {"X-Noetl-Timestamp": now, "X-Noetl-Signature": f"v2={digest}"}
    begun = [
        ask(stack, "POST", "/api/webhooks/orders", content=body, headers=signed),
        ask(stack, "POST", "/api/webhooks/open", json={}),
        ask(stack, "POST", "/api/schedules/nightly/run"),
    ]
    for answer in begun:
        assert wait_for_end(stack, answer.json()["execution_id"]) == "COMPLETED"
    for kind in ("schedules", "webhooks", "triggers", "credentials"):
        assert ask(stack, "GET", f"/api/{kind}").json()[kind]


def test_an_approval_that_was_asked_for_before_is_given(stack: Stack) -> None:
    execution_id = find_earlier(stack, "old/gate", "RUNNING")
    approvals = ask(stack, "GET", "/api/approvals").json()["approvals"]
    (approval,) = [item for item in approvals if item["execution_id"] == execution_id]
    address = f"/api/approvals/{approval['approval_id']}"
    ask(stack, "POST", address, json={"decision": "approve"})
    assert wait_for_end(stack, execution_id) == "COMPLETED"


def read_planner_environ(stack: Stack, **changes: str) -> dict[str, str]:
    """What the stack's planner is told, for another one beside it without the owner's token."""
    pid = stack.pid("planner-1")
    parts = dict(
        entry.split("=", 1)
        for entry in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        if "=" in entry
    )
    ports = loopback.choose_ports(["http", "health"], before={})
    for name in ("NOETL_PLANNER_OWNER_TOKEN_SHA256", "NOETL_PLANNER_OWNER_NAME"):
        parts.pop(name, None)
    parts |= {
        "NOETL_PLANNER_INSTANCE": "planner-beside",
        "NOETL_PLANNER_HTTP_PORT": str(ports["http"]),
        "NOETL_PLANNER_HEALTH_PORT": str(ports["health"]),
    }
    return parts | changes


def test_a_planner_whom_nobody_could_ask_does_not_start(stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "noetl_planner"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=read_planner_environ(stack),
    )
    assert done.returncode != 0
    stdout = done.stdout + done.stderr
    for way in ("NOETL_PLANNER_OWNER_TOKEN_SHA256", "noetl key owner", "off-on-loopback"):
        assert way in stdout


def test_it_goes_on_as_before_where_authentication_is_off(stack: Stack) -> None:
    environ = read_planner_environ(stack, NOETL_AUTH="off-on-loopback")
    url = f"http://127.0.0.1:{environ['NOETL_PLANNER_HTTP_PORT']}/api/executions"
    with subprocess.Popen([sys.executable, "-m", "noetl_planner"], env=environ) as process:
        try:

            def answers() -> bool:
                try:
                    return httpx.get(url, timeout=5).is_success
                except httpx.HTTPError:
                    return False

            wait_until(answers, timeout_s=PATIENCE_S, what="the planner answers anybody")
            listed = json.loads(httpx.get(url, timeout=5).text)["executions"]
        finally:
            process.terminate()
    assert len(listed) >= len({row["path"] for row in listed}) > 1
