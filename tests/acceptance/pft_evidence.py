"""What a run leaves behind, and a verifier that judges it."""

import asyncio
import json
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.pft_driver import EXECUTION, Driver, fixture_server
from tests.support.servers import PostgresServer

from noetl_pft.__main__ import main

NONCE = "0123456789abcdef"
SLOTS, FRAME_ROWS = 4, 10


@dataclass(frozen=True)
class Evidence:
    """A database and a ledger folder."""

    server: PostgresServer
    database: str
    ledgers: Path
    variant: str

    def sql(self, text: str) -> None:
        self.server.execute(text, database=self.database)

    def ledger(self) -> Path:
        return self.ledgers / NONCE / "1.ndjson"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger().read_text().splitlines()]

    def write(self, lines: list[dict[str, Any]]) -> None:
        self.ledger().write_text("".join(json.dumps(line) + "\n" for line in lines))

    def verify(self, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, dict[str, Any]]:
        report = self.ledgers / "report.json"
        command = [
            "pft",
            "verify",
            "--variant",
            self.variant,
            "--facilities",
            "1",
            "--patients",
            "50",
        ]
        command += ["--execution", EXECUTION, "--nonce", NONCE, "--slots", str(SLOTS)]
        command += ["--frame-rows", str(FRAME_ROWS), "--json", str(report)]
        command += ["--dsn", self.server.admin_dsn(self.database)]
        command += ["--ledger-dir", str(self.ledgers), *options]
        monkeypatch.setattr(sys, "argv", command)
        code = main()
        return code, json.loads(report.read_text()) if report.exists() else {}


@contextmanager
def good_run(
    server: PostgresServer, ledgers: Path, variant: str, **workload: Any
) -> Iterator[Evidence]:
    """One good 1x50 run, made by the playbook's own statements against the real fixture."""
    name = f"pft_good_{secrets.token_hex(4)}"
    dsn = asyncio.run(server.create_database(name))
    given = {"facilities": 1, "patients": 50, "run_nonce": NONCE, "frame_rows": FRAME_ROWS}

    async def run(api: str) -> None:
        wanted = given | {"api_url": api} | workload
        driver = Driver(dsn=dsn, workload=wanted, variant=variant, slots=SLOTS)
        await driver.run()
        await driver.log.write(dsn)

    with fixture_server(ledgers, "--run", NONCE) as served:
        asyncio.run(run(served["api"]))
    yield Evidence(server, name, ledgers, variant)
    asyncio.run(server.drop_database(name))


@contextmanager
def copied(good: Evidence, folder: Path) -> Iterator[Evidence]:
    """A copy of a good run that a test may spoil."""
    name = f"pft_copy_{secrets.token_hex(4)}"
    good.server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{good.database}" STRATEGY FILE_COPY')
    shutil.copytree(good.ledgers, folder)
    yield Evidence(good.server, name, folder, good.variant)
    asyncio.run(good.server.drop_database(name))


def failed(report: dict[str, Any]) -> set[str]:
    """The names of the checks that did not pass."""
    return {check["check"] for check in report["checks"] if not check["passed"]}
