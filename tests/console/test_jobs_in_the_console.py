"""What people come for, by mouse and by keyboard alone, in a real browser on a real stack."""

import re
from functools import partial
from pathlib import Path

from playwright.sync_api import Page, Route, expect
from tests.console.conftest import (
    HOSTILE,
    OpenPage,
    a_playbook,
    find_address,
    is_over,
    read_status,
    sign_in_address,
    type_noetl,
)
from tests.console.test_console_pages import PICTURES
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

Runs = dict[str, str]
# Six frames of two rows each.
FRAMED = a_playbook(
    "framed",
    """\
    - step: each
      loop:
        in: "{{ range(12) }}"
        iterator: row
        spec: {mode: chunked, chunk_size: 2}
      tool: {kind: noop, result: "{{ iter.row }}"}
    """,
)

# Goes on until it is cancelled, or for longer than a test takes.
BUSY = a_playbook(
    "busy",
    """\
    - step: work
      tool: {kind: python, code: "import time; time.sleep(600)"}
    """,
)


def test_open_signs_in_once_and_leaves_no_code_behind(
    open_page: OpenPage, stack: Stack, runs: Runs
) -> None:
    watched = open_page(is_signed_in=False)
    page = watched.page
    page.goto(find_address(stack, runs["orders"]))
    page.wait_for_url(f"**/console/runs/{runs['orders']}")
    assert "code" not in page.url
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert cookies["noetl_session"]["httpOnly"]
    assert cookies["noetl_session"]["sameSite"] == "Lax"
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
        *(0, 0),
        "",
    ]
    again = sign_in_address(stack)
    page.goto(again)
    # Who is signed in is asked before the link makes them somebody else.
    page.get_by_role("button", name="Sign in anew").click()
    page.wait_for_url("**/console/runs")
    other = open_page(is_signed_in=False).page
    other.goto(again)
    expect(other.get_by_role("alert")).to_contain_text("was used before")


def test_without_a_session_the_token_signs_in_and_out(open_page: OpenPage, stack: Stack) -> None:
    page = open_page(is_signed_in=False).open("runs")
    expect(page.get_by_role("heading", name="Sign in to NoETL")).to_be_visible()
    page.get_by_label("Owner's token or API key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    token = stack.owner_headers["Authorization"].removeprefix("Bearer ")
    page.get_by_label("Owner's token or API key").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in to NoETL")).to_be_visible()


def test_a_failed_run_opens_on_its_first_error(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open("runs")
    page.get_by_label("Status").select_option("FAILED")
    expect(page.locator("tbody tr").first).to_be_visible()
    assert "status=FAILED" in page.url
    page.get_by_role("link", name="demo/import-orders").click()
    error = page.get_by_role("region", name="What failed first")
    expect(error).to_contain_text("Failed at convert")
    expect(error).to_contain_text("has no amount")
    error.get_by_role("link", name="Failed items").click()
    expect(page.locator("tbody tr").filter(has_text="order 4 has no amount")).to_be_visible()
    expect(page.get_by_text("noetl items")).to_be_visible()


def test_every_part_of_a_run_follows_the_moment(
    open_page: OpenPage, stack: Stack, runs: Runs
) -> None:
    run, api = runs["orders"], stack.url("api")
    head = http.get(f"{api}/api/executions/{run}/moment").json()["head_version"]
    watched = open_page()
    page = watched.open(f"runs/{run}")
    expect(page.get_by_text("equals replay")).to_be_visible()
    for version in (1, 7, head // 2, head - 1):
        page = watched.open(f"runs/{run}?as_of={version}", wait="text=You see the run as it was")
        then = http.get(f"{api}/api/executions/{run}/moment", params={"version": version}).json()
        shown = page.locator(".badge").first
        expect(shown).to_have_text(then["status"].lower())
        lanes = page.locator("section[aria-labelledby=lanes-title] li")
        expect(lanes).to_have_count(len(then["steps"]))
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_text(f"up to version {head - 1}")).to_be_visible()
    page.get_by_role("button", name="One event back").click()
    page.wait_for_url(f"**as_of={head - 2}")
    page.get_by_role("button", name="Latest").click()
    expect(page.get_by_text("You see the run as it was")).to_have_count(0)


def test_logs_are_searched_and_their_first_error_found(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open(f"runs/{runs['orders']}/logs")
    # The page of a run that failed is scrolled to the first error by itself.
    expect(page.get_by_text("ERROR the source answered slowly")).to_be_visible()
    page.get_by_role("region", name="Lines").evaluate("lines => lines.scrollTo(0, 0)")
    expect(page.get_by_text("page 0 read", exact=True)).to_be_visible()
    page.get_by_role("button", name="First error").click()
    expect(page.get_by_text("ERROR the source answered slowly")).to_be_in_viewport()
    page.get_by_label("Search the lines").fill("PAGE 39")
    expect(page.get_by_role("status").get_by_text(re.compile(r"^1 of \d+ lines$"))).to_be_visible()
    expect(page.locator("mark")).to_have_text("page 39")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert "page 39 read" in Path(download.value.path()).read_text()
    page.get_by_label("Stream").select_option("stderr")
    expect(page.get_by_text("No line is like that.")).to_be_visible()


def test_the_command_finds_the_lines_that_the_page_finds(stack: Stack, runs: Runs) -> None:
    found = type_noetl(stack, "logs", runs["orders"], "fetch", "--search", "page 3")
    assert [line.rpartition(": ")[2] for line in found.splitlines()] == [
        f"page {page} read" for page in (3, *range(30, 40))
    ]
    assert type_noetl(stack, "logs", runs["orders"], "--attempt", "99") == ""


def test_two_moments_are_compared(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open(f"runs/{runs['greeting']}/compare")
    page.get_by_label("From version").fill("1")
    page.get_by_label("From version").press("Tab")
    expect(page.locator("tbody")).to_contain_text("completed_steps")


def test_an_approval_is_decided_by_the_keyboard_alone(
    open_page: OpenPage, stack: Stack, runs: Runs
) -> None:
    page = open_page().open("approvals")
    expect(page.get_by_text("Release it?")).to_be_visible()
    press_until_focused(page, "approve")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("checked twice")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nobody waits for a decision.")).to_be_visible()
    wait_until(
        lambda: read_status(stack.url("api"), runs["release"]) == "COMPLETED",
        timeout_s=60,
        what="the run goes on",
    )
    events = http.get(f"{stack.url('api')}/api/executions/{runs['release']}/events").text
    assert "checked twice" in events


def test_runs_are_chosen_opened_and_begun_again_by_keys(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open("runs?path=demo/greeting")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("1 chosen")).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/runs/*")
    expect(page.locator("h1")).to_be_focused()
    press_until_focused(page, "Run again")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    press_until_focused(page, "Run again", within="dialog")
    before = page.url
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url != before)
    expect(page.locator(".badge").first).to_have_text("completed")


def test_a_dialog_that_is_left_changes_nothing(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open(f"runs/{runs['greeting']}")
    before = page.url
    page.get_by_role("button", name="Run again").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("button", name="Keep as it is").click()
    assert page.url == before


def test_a_playbook_is_written_checked_and_run_as_a_draft(open_page: OpenPage) -> None:
    page = open_page().open("playbooks/demo/greeting")
    editor = page.get_by_label("Text of the playbook")
    expect(editor).to_contain_text("hello {{ workload.who }}")
    expect(page.get_by_text("no errors")).to_be_visible()
    page.get_by_label("who").fill("Ann")
    editor.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("workflw: 1\n")
    problems = page.get_by_role("list", name="Problems of the text")
    expect(problems).to_contain_text("workflw")
    expect(page.get_by_role("button", name="Run as a draft")).to_be_disabled()
    for _ in "workflw: 1\n":
        page.keyboard.press("Backspace")
    page.keyboard.type("# changed")
    expect(page.get_by_text("no errors")).to_be_visible()
    page.get_by_role("button", name="Run as a draft").click()
    page.wait_for_url("**/console/runs/*")
    expect(page.locator(".badge").first).to_have_text("completed")
    page.get_by_role("link", name="Context").click()
    expect(page.get_by_role("region", name="Inputs as JSON")).to_contain_text("Ann")
    # What ran is nowhere in the catalog: the run leads to its text, which can be registered.
    page.get_by_role("link", name="demo/greeting", exact=True).click()
    expect(page.get_by_label("Text of the playbook")).to_contain_text("# changed")
    expect(page.get_by_label("Version", exact=True)).to_contain_text("draft")
    expect(page.get_by_role("button", name="Register")).to_be_enabled()


def tell_that_it_waits(route: Route) -> None:
    """Answer as the planner does, of a frame that would wait for its next try."""
    answer = route.fetch()
    reason = "its next try is due"
    waiting = {"kind": "retry", "reason": reason, "since": None, "until": "2026-01-01T00:00:00Z"}
    route.fulfill(response=answer, json={**answer.json(), "waiting": waiting})


def test_the_frames_of_a_part_of_a_strip_are_shown_by_keyboard_and_by_mouse(
    open_page: OpenPage, stack: Stack
) -> None:
    run = start_run(stack, FRAMED, "framed")
    wait_until(partial(is_over, stack.url("api"), run), timeout_s=PATIENCE_S, what="it ends")
    page = open_page().open(f"runs/{run}")
    ribbon = page.get_by_role("table", name="How long the frames of each took")
    expect(ribbon).to_contain_text("6 ended")
    strip = page.get_by_role("img", name="6 frames of each")
    strip.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    frames = page.get_by_role("region", name="Frames of each", exact=True)
    expect(frames).to_contain_text("Frames 2 to 2")
    row = frames.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("completed")
    row.get_by_role("button").click()
    shown = frames.get_by_role("region", name=re.compile(r"^Frame \d"))
    expect(shown).to_contain_text('"row_count": 2')
    leases = frames.get_by_role("region", name=re.compile("^Leases of frame"))
    expect(leases.locator("tbody tr")).to_have_count(1)
    expect(leases).to_contain_text("completed")
    frames.get_by_role("button", name="Input").click()
    expect(frames).to_contain_text("What the frame was given: 2 rows")
    keep_pictures(page, "frames")
    frames.get_by_role("button", name="Output").click()
    expect(frames).to_contain_text("What the frame gave: 2 rows")
    page.route(re.compile(r"/frames/\d+$"), tell_that_it_waits)
    for _ in ("close", "open"):
        row.first.get_by_role("button").first.click()
    expect(frames).to_contain_text("Waits: its next try is due, at ")
    keep_pictures(page, "frame-wait")
    strip.focus()
    page.keyboard.press("Escape")
    expect(frames).to_have_count(0)
    strip.click()
    frames.get_by_role("button", name="Close the frames of each").click()
    expect(frames).to_have_count(0)


def test_what_a_worker_holds_is_listed_with_its_run(open_page: OpenPage, stack: Stack) -> None:
    run = start_run(stack, BUSY, "busy")
    page = open_page().open("workers")
    held = page.get_by_role("region", name="Each command that a worker holds")
    row = held.locator("tbody tr").filter(has_text=run)
    expect(row).to_contain_text("work")
    keep_pictures(page, "leases")
    row.get_by_role("link", name="demo/busy").click()
    expect(page.get_by_role("heading", name="busy")).to_be_visible()
    cancelled = http.post(f"{stack.url('api')}/api/executions/{run}/cancel", json={})
    assert cancelled.is_success, cancelled.text


def start_run(stack: Stack, text: str, name: str) -> str:
    registered = http.post(f"{stack.url('api')}/api/catalog/register", json={"content": text})
    assert registered.is_success, registered.text
    return stack.execute(f"demo/{name}", key=name)


def keep_pictures(page: Page, name: str) -> None:
    """Keep a page as a picture, wide and narrow; it fits both."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 1_000})
        page.screenshot(path=PICTURES / f"{name}-light-{width}.png", full_page=True)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), width
    page.set_viewport_size({"width": 1280, "height": 800})


def test_texts_from_outside_are_shown_and_never_run(open_page: OpenPage, runs: Runs) -> None:
    watched = open_page()
    parts = ("", "/items", "/logs", "/events", "/payloads?step=speak", "/context", "/compare")
    for part in parts:
        page = watched.open(f"runs/{runs['struck']}{part}")
        page.wait_for_load_state("networkidle")
        watched.check()
    page = watched.open(f"runs/{runs['struck']}")
    expect(page.get_by_role("region", name="What failed first")).to_contain_text(HOSTILE[:40])
    watched.open("runs?path=demo/struck")
    expect(page.locator("tbody")).to_contain_text("onerror")


def press_until_focused(page: Page, text: str, *, within: str = "body") -> None:
    """Press Tab until a button with this text has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "within => { const at = document.activeElement;"
            " return at && at.closest(within) ? at.textContent.trim() : '' }",
            within,
        )
        if found == text:
            return
    raise AssertionError(f"no way by Tab to {text!r}")
