"""What checks of datasets found, on the pages of a playbook and of a run; and how far Spark is."""

import json
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect
from tests.console.conftest import OpenPage, a_playbook, is_over
from tests.console.test_console_pages import AXE_OPTIONS, PICTURES, Theme
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

CHECKED = a_playbook(
    "checked",
    """\
    - step: begin
      tool: {kind: noop}
      next: {arcs: [{step: load}]}
    - step: load
      tool:
        kind: duckdb
        query: SELECT count(*) AS n FROM orders
        database: ":memory:"
        inputs:
          orders:
            rows: "{{ workload.orders }}"
            expect: {not_null: [id], row_count: {min: 1}, on_fail: warn}
    """,
    "{orders: [{id: 1}, {id: 2}]}",
)
BROKEN = [{"id": 1}, {"id": None}, {"id": None}]
# Tells of a stream of Spark, and goes on until the page is left.
TELLS = """
const ask = window.fetch;
window.fetch = async (address, options) => {
  if (!address.includes('/stream')) return ask(address, options);
  window.asked = address;
  const text = new TextEncoder();
  return new Response(new ReadableStream({
    start(stream) {
      for (const progress of window.told)
        stream.enqueue(text.encode(`event: progress\\ndata: ${JSON.stringify(progress)}\\n\\n`));
      stream.enqueue(text.encode(': alive\\n\\n'));
      options.signal.addEventListener('abort', () => stream.close());
    },
  }));
};
"""
TOLD = [
    {
        "step": "follow",
        "command_id": "11",
        "attempt": 1,
        "spark": {
            "phase": "job",
            "seconds": 61,
            "jobs": 12,
            "stream": {
                "batch": 12,
                "rows": 60_000,
                "files": 24,
                "files_behind": 3,
                "input_rows_per_s": 2600.4,
                "processed_rows_per_s": 2500.4,
                "batch_s": 1.26,
                "watermark": "2026-01-01T12:00:00.000Z",
            },
        },
    },
    {
        "step": "sum",
        "command_id": "12",
        "attempt": 2,
        "spark": {"phase": "job", "seconds": 9, "jobs": 2, "stages": [[7, 45, 200]], "rows": 1200},
    },
    {"step": "late", "command_id": "13", "attempt": 1, "spark": {"phase": "queue", "seconds": 3}},
]


@pytest.fixture(scope="module")
def checked(stack: Stack, runs: dict[str, str]) -> dict[str, str]:
    """A run whose checks hold, and a later one that breaks one of them."""
    api = stack.url("api")
    answer = http.post(f"{api}/api/catalog/register", json={"content": CHECKED})
    assert answer.is_success, answer.text
    found = {}
    for name, inputs in {"held": {}, "broken": {"orders": BROKEN}}.items():
        found[name] = stack.execute("demo/checked", key=name, **inputs)
        wait_until(partial(is_over, api, found[name]), timeout_s=PATIENCE_S, what=f"{name} ends")
    return found


def test_a_playbook_shows_its_checks_run_after_run(
    open_page: OpenPage, checked: dict[str, str]
) -> None:
    page = open_page().open("playbooks/demo/checked")
    table = page.get_by_role("region", name="Each check of its datasets")
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(2)
    broken = rows.filter(has_text="not_null id")
    expect(broken).to_contain_text("broken")
    expect(broken).to_contain_text("2 rows break it")
    expect(broken).to_contain_text("1 of 2")
    expect(rows.filter(has_text="row_count")).to_contain_text("holds")
    expect(page.get_by_text("noetl checks demo/checked")).to_be_visible()
    outcomes = broken.get_by_role("link", name="Run ")
    expect(outcomes).to_have_count(2)
    # The oldest first.
    expect(outcomes.first).to_contain_text("holds: no row breaks it")
    outcomes.last.click()
    page.wait_for_url(f"**/runs/{checked['broken']}?step=load")
    expect(page.get_by_role("heading", name="Step load")).to_be_visible()


def test_a_playbook_without_checks_says_so_and_a_refusal_is_shown(
    open_page: OpenPage, runs: dict[str, str]
) -> None:
    watched = open_page()
    page = watched.open("playbooks/demo/greeting")
    expect(page.get_by_text("No run has checked a dataset yet")).to_be_visible()
    refusal = {"code": "too_many_runs", "detail": "There are too many.", "hint": "Ask for fewer."}
    page.route("**/api/checks*", partial(_answer, status=413, body=refusal))
    page = watched.open("playbooks/demo/greeting")
    expect(page.get_by_role("alert")).to_contain_text("There are too many.")
    page.unroute("**/api/checks*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("No run has checked a dataset yet")).to_be_visible()


def _answer(route: Route, *, status: int, body: Any) -> None:
    route.fulfill(status=status, content_type="application/json", body=json.dumps(body))


def test_a_step_shows_what_its_checks_found_and_when(
    open_page: OpenPage, checked: dict[str, str]
) -> None:
    watched = open_page()
    run = checked["broken"]
    page = watched.open(f"runs/{run}")
    page.get_by_role("button", name="1 of 2 checks broken").click()
    table = page.get_by_role("region", name="Checks of load")
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(table.locator("tr", has_text="not_null id")).to_contain_text("2 rows break it")
    expect(page.get_by_text(f"noetl checks --execution {run} --step load")).to_be_visible()
    page.get_by_role("button", name="begin", exact=True).click()
    expect(page.get_by_text("No check of a dataset has told anything")).to_be_visible()
    page = watched.open(f"runs/{run}?as_of=2&step=load")
    expect(page.get_by_text("Step load has not begun by this moment")).to_be_visible()
    # Before the step ended nothing was known.
    version = _find_end(watched.base, run)
    page = watched.open(f"runs/{run}?as_of={version - 1}&step=load")
    expect(page.get_by_text("By this moment no check")).to_be_visible()
    expect(page.get_by_text(f"--step load --at {version - 1}")).to_be_visible()
    page = watched.open(f"runs/{run}?as_of={version}&step=load")
    expect(page.get_by_role("region", name="Checks of load").locator("tbody tr")).to_have_count(2)


def _find_end(base: str, run: str) -> int:
    """Return the version of the event in which the step `load` ended."""
    events = http.get(f"{base}/api/executions/{run}/events", params={"limit": 1000}).json()
    return next(
        int(event["version"])
        for event in events["events"]
        if event["event_type"] == "step.exit" and event["context"]["step"] == "load"
    )


def open_live(open_page: OpenPage, runs: dict[str, str], **options: Any) -> Page:
    """Open the run that waits, whose stream tells of Spark."""
    watched = open_page(**options)
    watched.page.add_init_script(f"window.told = {json.dumps(TOLD)};{TELLS}")
    return watched.open(f"runs/{runs['release']}")


def test_a_run_shows_how_far_streams_of_spark_are(
    open_page: OpenPage, runs: dict[str, str]
) -> None:
    page = open_live(open_page, runs)
    rows = page.get_by_role("region", name="Tasks of Spark").locator("tbody tr")
    expect(rows).to_have_count(3)
    assert page.evaluate("window.asked").endswith("/moment/stream")
    stream = rows.filter(has_text="follow")
    for words in ("batch 12", "60,000", "2,600", "2,500", "24", "1.3 s", "1 min 1 s"):
        expect(stream).to_contain_text(words)
    expect(rows.filter(has_text="sum")).to_contain_text("job 2, stage 7: 45/200")
    expect(rows.filter(has_text="sum")).to_contain_text("attempt 2")
    expect(rows.filter(has_text="late")).to_contain_text("waits for other Spark jobs")
    # What is told of the present is no part of the past.
    page.get_by_role("button", name="One event back").click()
    expect(page.get_by_role("region", name="Tasks of Spark")).to_have_count(0)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 360)])
def test_checks_and_progress_are_for_everybody_and_fit(
    open_page: OpenPage,
    runs: dict[str, str],
    checked: dict[str, str],
    axe_source: str,
    theme: Theme,
    width: int,
) -> None:
    size = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    watched = open_page(**size)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, open_one in {
        "playbook-checks": lambda: watched.open("playbooks/demo/checked"),
        "step-checks": lambda: watched.open(f"runs/{checked['broken']}?step=load"),
        "spark-progress": lambda: open_live(open_page, runs, **size),
    }.items():
        page = open_one()
        shown = {"playbook-checks": "Each check of its", "step-checks": "Checks of load"}
        page.get_by_role("region", name=shown.get(name, "Tasks of Spark")).wait_for()
        page.wait_for_load_state("networkidle")
        page.evaluate(axe_source)
        found: Any = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
        assert [
            (violation["id"], node["html"][:200])
            for violation in found["violations"]
            for node in violation["nodes"]
        ] == [], name
        page.screenshot(path=PICTURES / f"{name}-{theme}-{width}.png", full_page=True)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name
