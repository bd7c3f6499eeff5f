"""The statements of playbooks B and C on a real Postgres; saves refuse what is not theirs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any

import asyncpg
import pytest
from tests.acceptance.pft_driver import Driver, load_playbook

from noetl_pft.workload import model
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

PATIENTS = 12
Answer = dict[str, Any]


async def begun(dsn: str, variant: str, *steps: str, **workload: Any) -> Driver:
    given = {"facilities": 1, "patients": PATIENTS, "run_nonce": "n"} | workload
    driver = Driver(dsn=dsn, workload=given, variant=variant)
    driver.pool = await asyncpg.create_pool(dsn, min_size=1, max_size=8)
    for name in steps:
        await driver.enter(name)
    return driver


@pytest.fixture
async def batches(database: str) -> AsyncIterator[Driver]:
    """Playbook B just before its first claim."""
    driver = await begun(database, "b", "start", "load_next_facility", "setup_facility_work")
    async with driver.pool:
        yield driver


@pytest.fixture
async def chain(database: str) -> AsyncIterator[Driver]:
    """Playbook C with fan-out just before its first claim."""
    driver = await begun(database, "c", "start", "seed_pages", fan_out=True)
    async with driver.pool:
        yield driver


def answer_for(kind: str, patients: list[int]) -> Answer:
    def row(patient: int, page: int) -> Answer:
        owner = {"patient_id": patient, "facility_mapping_id": 1}
        if kind == "demographics":
            return owner | {"payload": model.build_demographics(patient)}
        is_last = page == model.count_pages(patient, kind)
        body = model.build_page_body(patient, kind, page)
        return owner | {"page_number": page, "payload": body, "is_last_page": is_last}

    last = {p: 1 if kind == "demographics" else model.count_pages(p, kind) for p in patients}
    return {"rows": [row(p, page) for p in patients for page in range(1, last[p] + 1)]}


async def save(driver: Driver, kind: str, rows: list[Any], answer: Answer) -> None:
    step = driver.steps[f"fetch_{kind}"]
    task = next(task for task in step["tool"] if task["name"] == "save")
    frame = {"id": "900", "rows": rows}
    await driver.task(task, driver.names | {"frame": frame, "get": {"body": answer}})


async def count(driver: Driver, table: str, where: str = "true") -> int:
    return int(await driver.pool.fetchval(f"SELECT count(*) FROM {table} WHERE {where}"))  # noqa: S608 - our own words


@pytest.mark.parametrize("variant", ["b", "c"])
def test_the_playbook_is_clean_at_the_strict_level(variant: str) -> None:
    text = (files("noetl_pft") / "playbooks" / f"pft_{variant}.yaml").read_text()
    assert parse_playbook(text, level=Level.STRICT).problems == ()


@pytest.mark.parametrize("variant", ["b", "c"])
def test_no_statement_makes_a_claimed_row_pending_again(variant: str) -> None:
    for step in load_playbook(variant)["workflow"]:
        assert "SET status = 'pending'" not in str(step)


def test_a_and_b_claim_and_mark_alike() -> None:
    steps = [
        {step["step"]: step for step in load_playbook(variant)["workflow"]} for variant in "ab"
    ]
    assert list(steps[0]) == list(steps[1])
    for name, of_a in steps[0].items():
        of_b = steps[1][name]
        if "loop" in of_a:
            assert of_a["loop"]["cursor"] == of_b["loop"]["cursor"]
            assert of_b["loop"]["spec"]["frame"]["process"] == "frame"
        elif name != "start":
            assert of_a == of_b


@pytest.mark.parametrize("kind", ["assessments", "demographics"])
async def test_a_whole_answer_is_saved_and_its_rows_are_done(batches: Driver, kind: str) -> None:
    rows = await batches.claim(batches.steps[f"fetch_{kind}"], "900", 5)
    answer = answer_for(kind, [1, 2, 3, 4, 5])
    for times in (1, 2):
        await save(batches, kind, rows, answer)
        saved = await count(batches, f"pft_test_patient_{kind}", f"save_count = {times}")
        assert saved == len(answer["rows"])
    assert await count(batches, "pft_test_patient_work_queue", "status = 'done'") == 5


def lack_a_patient(answer: Answer) -> None:
    answer["rows"] = [row for row in answer["rows"] if row["patient_id"] != 3]


def bring_a_stranger(answer: Answer) -> None:
    answer["rows"] += answer_for(_kind(answer), [6])["rows"]


def give_another_body(answer: Answer) -> None:
    answer["rows"][0]["payload"] = answer["rows"][-1]["payload"]


def say_nothing(answer: Answer) -> None:
    answer["rows"] = []


def lack_a_middle_page(answer: Answer) -> None:
    rows = answer["rows"]
    del rows[next(i for i, row in enumerate(rows) if not row["is_last_page"])]


def lack_a_last_page(answer: Answer) -> None:
    answer["rows"] = answer["rows"][:-1]


def end_too_early(answer: Answer) -> None:
    first = answer["rows"][0]
    first["is_last_page"] = True
    answer["rows"] = [row for row in answer["rows"] if row["patient_id"] != 1 or row is first]


def _kind(answer: Answer) -> str:
    return "assessments" if "page_number" in answer["rows"][0] else "demographics"


OF_ALL = [lack_a_patient, bring_a_stranger, give_another_body, say_nothing]
OF_PAGES = [lack_a_middle_page, lack_a_last_page, end_too_early]


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        *(("assessments", spoil) for spoil in OF_ALL + OF_PAGES),
        *(("demographics", spoil) for spoil in OF_ALL),
    ],
)
async def test_an_answer_that_is_not_the_frames_saves_nothing(
    batches: Driver, kind: str, spoil: Callable[[Answer], None]
) -> None:
    rows = await batches.claim(batches.steps[f"fetch_{kind}"], "900", 5)
    answer = answer_for(kind, [1, 2, 3, 4, 5])
    spoil(answer)
    with pytest.raises(asyncpg.RaiseError, match=rf"{kind}: the answer is not .* of frame 900"):
        await save(batches, kind, rows, answer)
    assert await count(batches, f"pft_test_patient_{kind}") == 0
    assert await count(batches, "pft_test_patient_work_queue", "status = 'done'") == 0


@pytest.mark.parametrize("spoilt", ["missing", "surplus", "swapped"])
async def test_details_of_other_assessments_are_refused(batches: Driver, spoilt: str) -> None:
    names = model.list_mds_ids(1, 1)
    await batches.pool.executemany(
        "INSERT INTO pft_test_mds_assessment_ids_work"
        " (assessment_id, pcc_patient_id, facility_mapping_id, execution_id) VALUES ($1, 1, 1, $2)",
        [(name, batches.names["execution_id"]) for name in names],
    )
    rows = await batches.claim(batches.steps["fetch_mds_details"], "900", 3)
    answer = {"rows": [{"assessment_id": n, "payload": model.build_detail(n)} for n in names[:3]]}
    await save(batches, "mds_details", rows, answer)
    assert await count(batches, "pft_test_mds_assessment_details", "save_count = 1") == 3
    match spoilt:
        case "missing":
            del answer["rows"][1]
        case "surplus":
            answer["rows"].append(
                {"assessment_id": names[3], "payload": model.build_detail(names[3])}
            )
        case _:
            answer["rows"][0]["payload"] = model.build_detail(names[4])
    with pytest.raises(asyncpg.RaiseError, match="MDS: the answer is not exactly the assessments"):
        await save(batches, "mds_details", rows, answer)
    assert await count(batches, "pft_test_mds_assessment_details", "save_count = 1") == 3


async def test_a_page_its_row_and_its_successors_change_in_one_transaction(chain: Driver) -> None:
    step = chain.steps["fetch_pages"]
    task = next(task for task in step["tool"] if task["name"] == "save")
    rows = await chain.claim(step, "900", 1)
    assert [(row["kind"], row["patient_id"], row["item"]) for row in rows] == [
        ("assessments", 1, "1")
    ]
    names = {"iter": {"unit": rows[0]}, "frame": {"id": "900"}}
    body = {"get": {"body": model.build_page_body(1, "assessments", 1)}}
    before = await count(chain, "pft_test_page_work")
    for times in (1, 2):
        await chain.task(task, chain.names | names | body)
        where = f"pcc_patient_id = 1 AND save_count = {times}"
        assert await count(chain, "pft_test_patient_assessments", where) == 1
        assert await count(chain, "pft_test_page_work") == before + 1 + model.count_mds_ids(1, 1)
    together = "created_at = (SELECT saved_at FROM pft_test_patient_assessments)"
    assert await count(chain, "pft_test_page_work", together) == 1 + model.count_mds_ids(1, 1)
    assert await count(chain, "pft_test_page_work", "status = 'done'") == 1


async def test_simultaneous_claims_of_pages_never_share_a_row(chain: Driver) -> None:
    step = chain.steps["fetch_pages"]
    frames = [str(frame) for frame in range(900, 908)]
    windows = await asyncio.gather(*(chain.claim(step, frame, 5) for frame in frames))
    taken = [(row["kind"], row["patient_id"]) for rows in windows for row in rows]
    assert len(taken) == len(set(taken)) == 40
    assert await chain.claim(step, "903", 50) == windows[3]


async def test_the_mark_raises_while_pages_are_open(chain: Driver) -> None:
    with pytest.raises(asyncpg.RaiseError, match=f"0 of {5 * PATIENTS} rows are done"):
        await chain.enter("mark_pages_done")


async def test_the_mark_raises_when_a_page_was_never_enqueued(chain: Driver) -> None:
    await chain.pool.execute("UPDATE pft_test_page_work SET status = 'done'")
    with pytest.raises(asyncpg.RaiseError, match=f"{PATIENTS} patients lack a full run of pages"):
        await chain.enter("mark_pages_done")


async def test_the_mark_raises_when_another_run_took_the_database(chain: Driver) -> None:
    await chain.pool.execute("UPDATE pft_test_run SET execution_id = 'other'")
    with pytest.raises(asyncpg.RaiseError, match="another run uses this database"):
        await chain.enter("mark_pages_done")


@pytest.mark.parametrize("variant", ["b", "c"])
async def test_a_second_delivery_of_the_setup_erases_nothing(database: str, variant: str) -> None:
    steps = {"b": ("load_next_facility", "setup_facility_work"), "c": ("seed_pages",)}[variant]
    driver = await begun(database, variant, "start", *steps)
    async with driver.pool:
        table = "pft_test_patient_work_queue" if variant == "b" else "pft_test_page_work"
        rows = await count(driver, table)
        assert rows > 0
        await driver.enter("start")
        assert await count(driver, table) == rows
