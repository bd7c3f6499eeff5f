"""The raw floor saves the same units into the same tables, and the verifier agrees."""

import asyncio
import json
import sys
from pathlib import Path

import asyncpg
import pytest
from tests.acceptance.pft_driver import Driver, fixture_server
from tests.support.servers import PostgresServer

from noetl_pft.__main__ import main
from noetl_pft.workload import queries

SHAPE = queries.parse_statements(Path(__file__).with_name("pft_shape.sql").read_text())
RESULT_TABLES = [
    *(f"pft_test_patient_{kind}" for kind in ("assessments", "conditions", "medications")),
    *("pft_test_patient_vital_signs", "pft_test_patient_demographics"),
    "pft_test_mds_assessment_details",
]


def pft(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pft", *arguments])
    return main()


@pytest.mark.parametrize(("variant", "requests"), [("a", 1658), ("b", 29), ("c", 423)])
def test_begin_floor_and_verify_agree_at_1x50(
    variant: str,
    requests: int,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dsn = asyncio.run(postgres.create_database("pft_floor"))
    scale = ["--facilities", "1", "--patients", "50", "--dsn", dsn, "--variant", variant]
    try:
        with fixture_server(tmp_path) as server:
            assert pft(monkeypatch, "begin", "--control", server["control"]) == 0
            nonce = capsys.readouterr().out.strip()
            assert pft(monkeypatch, "floor", *scale, "--api", server["api"]) == 0
            assert json.loads(capsys.readouterr().out)["requests"] == requests
        judged = ["verify", *scale, "--nonce", nonce, "--floor"]
        assert pft(monkeypatch, *judged, "--ledger-dir", str(tmp_path)) == 0
        other = ["--nonce", "other", "--ledger-dir", str(tmp_path)]
        assert pft(monkeypatch, *judged, *other) == 2
    finally:
        asyncio.run(postgres.drop_database("pft_floor"))


def test_the_floor_fails_on_the_first_error(
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dsn = asyncio.run(postgres.create_database("pft_floor"))
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"id": "r", "match": {"page": 2}, "action": {"status": 500}}]))
    try:
        with fixture_server(tmp_path, "--faults", str(rules)) as server:
            scale = ["--facilities", "1", "--patients", "5", "--dsn", dsn]
            assert pft(monkeypatch, "floor", *scale, "--api", server["api"]) == 1
        assert "500" in capsys.readouterr().err
    finally:
        asyncio.run(postgres.drop_database("pft_floor"))


def test_begin_says_so_when_the_control_port_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pft(monkeypatch, "begin", "--control", "http://127.0.0.1:9") == 2
    assert "does not obey" in capsys.readouterr().err


async def test_the_floor_makes_the_result_tables_as_the_playbook_does(database: str) -> None:
    db = await asyncpg.connect(database)
    try:
        await db.execute(queries.load_statements("floor")["setup"])
        floor = [await db.fetch(SHAPE[name], RESULT_TABLES) for name in ("columns", "indexes")]
        await db.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        driver = Driver(dsn=database, workload={"run_nonce": "n"})
        async with asyncpg.create_pool(database, min_size=1) as driver.pool:
            await driver.enter("start")
        playbook = [await db.fetch(SHAPE[name], RESULT_TABLES) for name in ("columns", "indexes")]
    finally:
        await db.close()
    assert len(floor[0]) > 50
    assert floor == playbook
