"""A run whose only worker is killed: every page says what is the matter, and what helps."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.console.conftest import OpenPage, Watched, a_playbook, is_over, read_status, type_noetl
from tests.console.test_console_pages import AXE_OPTIONS
from tests.console.test_jobs_in_the_console import keep_pictures
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

WORKER = "worker-1"
# Two items at work, for longer than the pages are looked at before the kill.
LONG = a_playbook(
    "long",
    """\
    - step: prepare
      tool: {kind: python, code: "print('prepared')"}
      next: {arcs: [{step: work}]}
    - step: work
      loop: {in: "{{ range(2) }}", iterator: number, spec: {mode: parallel}}
      tool: {kind: python, code: "import time; time.sleep({{ workload.seconds }})"}
    """,
    "{seconds: 600}",
)
START_ONE = "Start one with NOETL_WORKER_POOL=default"
# A lease lasts for half a minute, and somebody must see that it has ended.
LEASE_MS = 150_000


@dataclass(frozen=True, kw_only=True)
class LostRun:
    """A run, the worker that had it, and a page that was open when that was killed."""

    execution_id: str
    worker_id: str
    watched: Watched


def begin_run(stack: Stack, key: str, **workload: Any) -> tuple[str, str]:
    """Start a run and wait until a worker is at work on both items; return the worker too."""
    api = stack.url("api")
    answer = http.post(f"{api}/api/catalog/register", json={"content": LONG})
    assert answer.is_success, answer.text
    run = stack.execute("demo/long", key=key, **workload)

    def list_holders() -> list[str]:
        leases = http.get(f"{api}/api/workers/leases").json()["leases"]
        return [
            lease["worker_id"]
            for lease in leases
            if lease["execution_id"] == run and lease["step"] == "work"
        ]

    wait_until(lambda: len(list_holders()) == 2, timeout_s=PATIENCE_S, what="both items are run")
    return run, list_holders()[0]


@pytest.fixture(scope="module")
def long_run(stack: Stack, runs: dict[str, str]) -> tuple[str, str]:
    return begin_run(stack, "lost")


@pytest.fixture
def lost(stack: Stack, long_run: tuple[str, str], open_page: OpenPage) -> Iterator[LostRun]:
    execution_id, worker_id = long_run
    watched = open_page(bypass_csp=True)
    page = watched.open(f"runs/{execution_id}")
    expect(page.locator(".badge").first).to_have_text("running")
    expect(find_notice(page)).to_have_count(0)
    with stack.without(WORKER):
        yield LostRun(execution_id=execution_id, worker_id=worker_id, watched=watched)


def find_notice(page: Page) -> Locator:
    return page.get_by_role("region", name="Work of workers that are not heard")


def test_every_page_of_a_lost_run_says_who_had_it_and_what_to_do(
    lost: LostRun, stack: Stack, axe_source: str
) -> None:
    page = lost.watched.page
    # The page is told without a look of its own, and nothing happens in the run.
    notice = find_notice(page)
    expect(notice).to_contain_text(lost.worker_id)
    expect(notice).to_contain_text(re.compile(r"since\s+\d\d:\d\d:\d\d"))
    expect(notice).to_contain_text("No worker serves pool 'default'")
    expect(notice).to_contain_text(START_ONE.removeprefix("S"))
    expect(notice).to_contain_text("the run goes on by itself")
    node = page.locator(".svelte-flow__node").filter(has_text="work")
    expect(node).to_contain_text("without a worker")
    expect(node.locator(".step.tone-waiting")).to_have_count(1)
    lanes = page.get_by_role("region", name="Steps")
    expect(lanes).to_contain_text(f"worker {lost.worker_id}")
    expect(notice).to_contain_text("was lost", timeout=LEASE_MS)
    check_axe(page, axe_source)
    keep_pictures(page, "lost-run")
    page.get_by_role("link", name="Items", exact=True).click()
    items = page.get_by_role("region", name="Items", exact=True)
    expect(items.get_by_text("without a worker")).to_have_count(2)
    expect(find_notice(page)).to_contain_text(lost.worker_id)
    check_axe(page, axe_source)
    keep_pictures(page, "lost-items")
    page.get_by_role("link", name="Logs", exact=True).click()
    expect(page.get_by_text("prepared", exact=True)).to_be_visible()
    expect(page.get_by_text("No line comes now")).to_contain_text(lost.worker_id)
    check_axe(page, axe_source)
    keep_pictures(page, "lost-logs")
    find_notice(page).get_by_role("link", name="Workers and pools").click()
    pool = (
        page.get_by_role("region", name="Each pool").get_by_role("row").filter(has_text="default")
    )
    expect(pool.first).to_contain_text("no worker serves it")
    expect(pool.first).to_contain_text("NOETL_WORKER_POOL=default")
    expect(page.get_by_text("No worker has been heard lately")).to_be_visible()
    check_axe(page, axe_source)
    keep_pictures(page, "lost-workers")
    told = type_noetl(stack, "status", lost.execution_id)
    assert f"worker {lost.worker_id} was lost with work" in told
    assert "no worker serves pool 'default'" in told


def check_axe(page: Page, axe_source: str) -> None:
    page.evaluate(axe_source)
    found: Any = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
    assert [(item["id"], item["nodes"][0]["html"]) for item in found["violations"]] == []


def test_a_lost_run_is_cancelled_from_where_it_says_so(
    long_run: tuple[str, str], stack: Stack, open_page: OpenPage
) -> None:
    run, worker_id = long_run
    with stack.without(WORKER):
        page = open_page().open(f"runs/{run}")
        notice = find_notice(page)
        expect(notice).to_contain_text(worker_id, timeout=LEASE_MS)
        notice.get_by_role("button", name="Cancel the run").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
        expect(page.locator(".badge").first).to_have_text("cancelled")
        expect(find_notice(page)).to_have_count(0)


def test_a_lost_run_goes_on_by_itself_when_a_worker_is_back(
    stack: Stack, runs: dict[str, str], open_page: OpenPage
) -> None:
    api = stack.url("api")
    run, worker_id = begin_run(stack, "back", seconds=8)
    page = open_page().open(f"runs/{run}")
    with stack.without(WORKER):
        expect(find_notice(page)).to_contain_text(worker_id, timeout=LEASE_MS)
        assert read_status(api, run) == "RUNNING"
    wait_until(lambda: is_over(api, run), timeout_s=PATIENCE_S, what="the run ends")
    expect(page.locator(".badge").first).to_have_text("completed")
    expect(find_notice(page)).to_have_count(0)
