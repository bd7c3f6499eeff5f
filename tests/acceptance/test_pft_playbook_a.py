"""Every statement of playbook A works on a real Postgres, and its claims are repeatable."""

import asyncio
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.acceptance.pft_driver import Driver, fixture_server, load_playbook, render

from noetl_pft.workload import model
from noetl_pft.workload.model import Scale
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level


async def one(dsn: str, query: str) -> Any:
    db = await asyncpg.connect(dsn)
    try:
        return await db.fetchval(query)
    finally:
        await db.close()


@pytest.fixture
async def prepared(database: str) -> AsyncIterator[Driver]:
    """A run just before its first claim: 1 facility, 20 patients."""
    driver = Driver(dsn=database, workload={"facilities": 1, "patients": 20, "run_nonce": "n"})
    async with asyncpg.create_pool(database, min_size=1, max_size=8) as driver.pool:
        for name in ("start", "load_next_facility", "setup_facility_work"):
            await driver.enter(name)
        yield driver


async def test_the_whole_playbook_saves_every_unit_of_two_facilities(
    database: str, tmp_path: Path
) -> None:
    scale = Scale(2, 6)
    with fixture_server(tmp_path) as server:
        workload = {"facilities": "2", "patients": "6", "api_url": server["api"], "frame_rows": 4}
        await Driver(dsn=database, workload=workload | {"run_nonce": "n"}).run()
    logged = "SELECT sum(total_expected) FROM pft_test_validation_log"
    assert await one(database, logged) == model.count_totals(scale).unit_count
    details = "SELECT count(*) FROM pft_test_mds_assessment_details"
    assert await one(database, details) == model.count_totals(scale).mds
    open_rows = "SELECT count(*) FROM pft_test_patient_work_queue WHERE status <> 'done'"
    assert await one(database, open_rows) == 0


async def test_a_second_delivery_of_the_setup_erases_nothing(prepared: Driver) -> None:
    await prepared.enter("start")
    rows = await prepared.pool.fetchval("SELECT count(*) FROM pft_test_patient_work_queue")
    assert rows == 100


async def test_a_setup_of_a_new_execution_empties_an_older_database(prepared: Driver) -> None:
    await prepared.pool.execute(
        "ALTER TABLE pft_test_patient_work_queue DROP COLUMN frame_id, DROP COLUMN frame_row"
    )
    prepared.names["execution_id"] = "77"
    await prepared.enter("start")
    assert await prepared.pool.fetchval("SELECT count(*) FROM pft_test_patient_work_queue") == 0
    assert await prepared.pool.fetchval("SELECT execution_id FROM pft_test_run") == "77"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"run_nonce": ""}, "run_nonce is empty"), ({"slots": 0}, "at least 1")],
)
async def test_the_setup_refuses_what_cannot_work(
    prepared: Driver, changes: dict[str, Any], reason: str
) -> None:
    prepared.names["workload"] |= changes
    with pytest.raises(asyncpg.RaiseError, match=reason):
        await prepared.enter("start")


async def test_a_repeated_claim_returns_the_same_rows_and_takes_no_others(
    prepared: Driver,
) -> None:
    step = prepared.steps["fetch_conditions"]
    first = await prepared.claim(step, "900", 7)
    await prepared.pool.execute(
        "UPDATE pft_test_patient_work_queue SET status = 'done' WHERE patient_id = 3"
    )
    again = await prepared.claim(step, "900", 20)
    assert first == again
    assert [row["patient_id"] for row in first] == [1, 2, 3, 4, 5, 6, 7]
    other = await prepared.claim(step, "901", 7)
    assert [row["patient_id"] for row in other] == [8, 9, 10, 11, 12, 13, 14]


async def test_simultaneous_claims_of_one_frame_never_get_two_windows(prepared: Driver) -> None:
    step = prepared.steps["fetch_conditions"]
    for frame in ("910", "911", "912"):
        answers = await asyncio.gather(
            *(prepared.claim(step, frame, 5) for _ in range(4)), return_exceptions=True
        )
        # An empty answer is no window: the slot asks again under the same frame.
        windows = {str(rows) for rows in answers if rows and not isinstance(rows, BaseException)}
        refused = [e for e in answers if isinstance(e, BaseException)]
        assert all(isinstance(e, asyncpg.UniqueViolationError) for e in refused)
        assert len(windows) == 1
        assert str(await prepared.claim(step, frame, 5)) in windows


async def test_a_mark_step_raises_while_rows_are_open(prepared: Driver) -> None:
    with pytest.raises(asyncpg.RaiseError, match="0 of 20 queue rows are done"):
        await prepared.enter("mark_conditions_done")


async def test_a_mark_step_raises_when_a_page_is_missing(prepared: Driver) -> None:
    await prepared.pool.execute("UPDATE pft_test_patient_work_queue SET status = 'done'")
    with pytest.raises(asyncpg.RaiseError, match="20 patients lack a full run of pages"):
        await prepared.enter("mark_conditions_done")


@pytest.mark.parametrize(
    "step", ["mark_conditions_done", "mark_demographics_done", "mark_mds_done"]
)
async def test_a_mark_step_raises_when_another_run_took_the_database(
    prepared: Driver, step: str
) -> None:
    await prepared.pool.execute("UPDATE pft_test_run SET execution_id = 'other'")
    with pytest.raises(asyncpg.RaiseError, match="another run uses this database"):
        await prepared.enter(step)


def test_the_playbook_is_clean_at_the_strict_level() -> None:
    text = (files("noetl_pft") / "playbooks" / "pft_a.yaml").read_text()
    assert parse_playbook(text, level=Level.STRICT).problems == ()


def test_no_statement_makes_a_claimed_row_pending_again() -> None:
    for step in load_playbook()["workflow"]:
        assert "SET status = 'pending'" not in str(step)


def test_the_frame_policy_takes_numbers_and_texts() -> None:
    document = load_playbook()
    spec = next(s for s in document["workflow"] if "loop" in s)["loop"]["spec"]
    for value in (3, "3"):
        workload = document["workload"] | {"slots": value, "frame_rows": value}
        shown = render(spec, {"workload": workload})
        assert (shown["max_in_flight"], shown["frame"]["max_rows"]) == (3, 3)
