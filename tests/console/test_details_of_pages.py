"""Details that pages tell: where results lie, coming times, filters of records."""

import json
import re

from playwright.sync_api import expect
from tests.console.conftest import OpenPage, a_playbook, is_over
from tests.console.test_jobs_in_the_console import keep_pictures
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

TABLE = a_playbook(
    "kept-table",
    """\
    - step: read
      tool:
        kind: duckdb
        database: ":memory:"
        query: SELECT i AS id, i * 0.5::double AS amount FROM range(300) t(i)
        output: {format: arrow, inline_max_bytes: 0}
    """,
)
SLOW = a_playbook(
    "slow-frame",
    """\
    - step: each
      loop: {in: "{{ range(2) }}", iterator: row, spec: {mode: chunked, chunk_size: 2}}
      tool: {kind: python, code: "import time; time.sleep(25)"}
    """,
)
HOUR = {"path": "demo/greeting", "cron": "0 * * * *"}


def run_to_its_end(stack: Stack, text: str, name: str) -> str:
    api = stack.url("api")
    answer = http.post(f"{api}/api/catalog/register", json={"content": text})
    assert answer.is_success, answer.text
    run = stack.execute(answer.json()["path"], key=name)
    wait_until(lambda: is_over(api, run), timeout_s=PATIENCE_S, what=f"{name} ends")
    return run


def test_a_result_says_where_it_lies_and_its_arrow_schema(
    open_page: OpenPage, stack: Stack
) -> None:
    run = run_to_its_end(stack, TABLE, "kept-table")
    page = open_page().open(f"runs/{run}/payloads?step=read")
    row = page.get_by_role("region", name="Each result").locator("tbody tr")
    expect(row).to_contain_text("disk, Arrow")
    page.get_by_text("Arrow schema: 2 columns").click()
    columns = page.get_by_role("region", name="Arrow schema").locator("tbody tr")
    expect(columns).to_have_count(2)
    expect(columns.nth(1)).to_contain_text("double")
    keep_pictures(page, "schema")


def test_schedules_show_the_times_to_come_and_those_that_were_missed(
    open_page: OpenPage, stack: Stack
) -> None:
    api = stack.url("api")
    assert http.put(f"{api}/api/schedules/hourly", json=HOUR).is_success
    watched = open_page()
    row = watched.open("schedules").get_by_role("row").filter(has_text="hourly")
    row.locator("summary").click()
    expect(row.get_by_role("list", name="Next times of hourly").locator("li")).to_have_count(5)
    late = http.get(f"{api}/api/schedules").json()
    late["schedules"][0] |= {"missed": ["2026-01-01T00:00:00Z"], "has_more_missed": True}
    watched.page.route(
        "**/api/schedules", lambda route: route.fulfill(status=200, body=json.dumps(late))
    )
    expect(watched.open("schedules").get_by_text("missed 1 or more")).to_be_visible()
    keep_pictures(watched.page, "missed")
    assert http.delete(f"{api}/api/schedules/hourly").is_success


def test_schedules_show_what_their_rules_passed_over(open_page: OpenPage, stack: Stack) -> None:
    api = stack.url("api")
    assert http.put(f"{api}/api/schedules/hourly", json=HOUR).is_success
    watched = open_page()
    told = http.get(f"{api}/api/schedules").json()
    (hourly,) = [item for item in told["schedules"] if item["name"] == "hourly"]
    assert (hourly["skipped"], hourly["skipped_count"]) == ([], 0)
    first, last = "2026-01-01T00:00:00Z", "2026-01-02T04:00:00Z"
    caught_up = {"first_at": first, "last_at": last, "times": 29, "is_exact": False}
    overlapped = {"first_at": last, "last_at": last, "times": 1, "is_exact": True}
    hourly |= {
        "skipped": [
            {**overlapped, "reason": "overlap", "running_execution_id": "7", "skipped_at": last},
            {**caught_up, "reason": "catch_up", "running_execution_id": None, "skipped_at": last},
        ],
        "skipped_count": 1030,
    }
    watched.page.route(
        "**/api/schedules", lambda route: route.fulfill(status=200, body=json.dumps(told))
    )
    row = watched.open("schedules").get_by_role("row").filter(has_text="hourly")
    row.get_by_text("skipped 1,030").click()
    skips = row.get_by_role("list", name="Newest skipped times of hourly").locator("li")
    expect(skips).to_have_count(2)
    expect(skips.nth(0).get_by_role("link")).to_have_attribute("href", re.compile(r"runs/7$"))
    expect(skips.nth(1)).to_contain_text("at least 29 times: catch-up rule last")
    keep_pictures(watched.page, "skipped")
    watched.check()
    assert http.delete(f"{api}/api/schedules/hourly").is_success


def test_audit_records_are_filtered_and_the_filters_are_in_the_address(
    open_page: OpenPage, stack: Stack
) -> None:
    api = stack.url("api")
    assert http.put(f"{api}/api/schedules/listed", json=HOUR).is_success
    assert http.delete(f"{api}/api/schedules/listed").is_success
    page = open_page().open("audit")
    filters = page.get_by_role("form", name="Filters")
    filters.get_by_label("Action").fill("schedule.removed")
    filters.get_by_label("Action").press("Enter")
    expect(page.get_by_text("schedule.written")).to_have_count(0)
    expect(page.get_by_text("schedule.removed").first).to_be_visible()
    assert "what=schedule.removed" in page.url
    keep_pictures(page, "audit-filters")
    filters.get_by_label("Outcome").select_option("refused")
    expect(page.get_by_text("No record is of this kind.")).to_be_visible()
    filters.get_by_label("Outcome").select_option("")
    filters.get_by_label("From").fill("2100-01-01T00:00")
    filters.get_by_label("From").press("Tab")
    expect(page.get_by_text("No record is of this kind.")).to_be_visible()
    filters.get_by_label("From").fill("")
    filters.get_by_label("From").press("Tab")
    filters.get_by_label("Until").fill("2100-01-01T00:00")
    filters.get_by_label("Until").press("Tab")
    expect(page.get_by_text("schedule.removed").first).to_be_visible()


def test_approvals_are_one_step_away_on_a_narrow_page(
    open_page: OpenPage, runs: dict[str, str]
) -> None:
    page = open_page(viewport={"width": 360, "height": 800}).open(f"runs/{runs['orders']}")
    page.get_by_role("link", name="Approvals").click()
    expect(page.locator("main h1")).to_have_text("Approvals")


def test_a_frame_at_work_waits_for_nothing(stack: Stack) -> None:
    api = stack.url("api")
    answer = http.post(f"{api}/api/catalog/register", json={"content": SLOW})
    assert answer.is_success, answer.text
    run = stack.execute(answer.json()["path"], key="slow-frame")
    frames = f"{api}/api/executions/{run}/frames"

    def list_statuses() -> list[tuple[str, str]]:
        found = http.get(frames).json()["frames"]
        return [(frame["frame_id"], frame["status"]) for frame in found]

    wait_until(
        lambda: any(status == "RUNNING" for _, status in list_statuses()),
        timeout_s=PATIENCE_S,
        what="a frame is run",
    )
    frame = next(frame for frame, status in list_statuses() if status == "RUNNING")
    assert http.get(f"{frames}/{frame}").json()["waiting"] is None
    assert http.post(f"{api}/api/executions/{run}/cancel", json={}).is_success
