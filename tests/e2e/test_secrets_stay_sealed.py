"""A credential's password is nowhere but in its sealed object."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.e2e import canaries
from tests.e2e.command_line import CommandLine
from tests.support.files import read_files
from tests.support.stack import Stack

from noetl_contracts import codec

pytestmark = pytest.mark.timeout(120)

CANARY = "tirili-8f41c02b-canary"
REFUSED = "tirili-77aa90de-canary"
STEP = "workflow:\n  - step: start\n    tool: {kind: postgres, auth: CREDENTIAL, query: QUERY}\n"


@contextmanager
def password_of_target(stack: Stack, password: str) -> Iterator[str]:
    """Give the target's role another password for a while; yields its address with it."""
    dsn = stack.url("target")
    parts = urlsplit(dsn)
    user, former = str(parts.username), str(parts.password)
    changed = dsn.replace(former, password)
    asyncio.run(canaries.change_password(dsn, user, password))
    try:
        yield changed
    finally:
        asyncio.run(canaries.change_password(changed, user, former))


def files_with(folder: Path, text: str) -> list[str]:
    return [file.name for file, data in read_files(folder) if text.encode() in data]


def run(command_line: CommandLine, credential: str, query: str) -> tuple[str, int]:
    body = STEP.replace("CREDENTIAL", credential).replace("QUERY", query)
    answer = command_line.type(
        "run", command_line.write("secretive", body), "--set", "marker=found-by-search"
    )
    assert CANARY not in answer.out + answer.err
    assert REFUSED not in answer.out + answer.err
    return answer.err.split()[1], answer.code


def opened(command_line: CommandLine, credential: str) -> tuple[str, int]:
    """Test a credential, and give the test's execution with its exit code."""
    answer = command_line.type("credential", "test", credential, "--json")
    assert CANARY not in answer.out + answer.err
    assert REFUSED not in answer.out + answer.err
    tested = codec.decode_json(answer.out)
    if answer.code == 0:
        assert tested["found"]["server"].startswith("PostgreSQL")
    else:
        assert "check user and password" in tested["error"]["message"]
    return tested["execution_id"], answer.code


def test_a_password_is_in_no_table_message_payload_log_or_answer(
    command_line: CommandLine, stack: Stack
) -> None:
    with password_of_target(stack, CANARY) as dsn:
        for name, address in (("pg_canary", dsn), ("pg_refused", dsn.replace(CANARY, REFUSED))):
            kept = command_line.type(
                *("credential", "put", name, "--type", "postgres", "--data", f"dsn={address}")
            )
            assert kept.code == 0, kept
        runs = {
            run(command_line, "pg_canary", "select 1 as one"): 0,
            run(command_line, "pg_canary", "select no_such_column"): 1,
            run(command_line, "pg_canary", "\"select cast('{{ execution_id }}x' as bigint)\""): 1,
            run(command_line, "pg_refused", "select 1 as one"): 1,
            opened(command_line, "pg_canary"): 0,
            opened(command_line, "pg_refused"): 1,
        }
    assert {code: expected for (_, code), expected in runs.items()} == {0: 0, 1: 1}
    for execution_id, code in runs:
        command_line.wait_for(execution_id, "FAILED" if code else "COMPLETED")
    rows = asyncio.run(canaries.dump(stack.url("postgres")))
    texts = [
        command_line.get(path).text
        for path in ("/api/credentials", "/api/executions", "/api/catalog", "/metrics")
    ] + [
        command_line.get(f"/api/executions/{execution_id}{part}").text
        for execution_id, _ in runs
        for part in ("", "/status", "/events")
    ]
    # What is searched can be found there at all.
    assert "found-by-search" in rows
    assert files_with(stack.folder / "nats", "found-by-search")
    assert any("found-by-search" in text for text in texts)
    for secret in (CANARY, REFUSED):
        assert secret not in rows
        assert [text for text in texts if secret in text] == []
        for folder in ("nats", "payloads", "logs"):
            assert files_with(stack.folder / folder, secret) == [], folder
