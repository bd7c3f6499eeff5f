"""What pages ask for while they are open, and no longer: streams, timers, slow answers."""

from http import HTTPStatus

from playwright.sync_api import Page, expect
from tests.console.conftest import OpenPage
from tests.support.servers import wait_until

Runs = dict[str, str]

# A run that goes on until its stream tells of its end. Its log has no lines before that.
GOES_ON = """
window.streams = 0; window.moments = 0; window.isOver = false;
const ask = window.fetch;
const tell = body => new Response(JSON.stringify(body), {status: 200});
const runOn = moment => ({...moment, status: 'RUNNING', ended_at: null});
const wait = ms => new Promise(resolve => setTimeout(resolve, ms));
window.fetch = async (address, options) => {
  if (address.includes('/moment/stream')) {
    window.streams += 1;
    const moment = await (await ask(address.replace('/stream', ''))).json();
    const text = new TextEncoder();
    const write = shown => `event: moment\\ndata: ${JSON.stringify(shown)}\\nid: 1\\n\\n`;
    return new Response(new ReadableStream({
      async start(stream) {
        for (let turn = 0; turn < 5; turn += 1) {
          stream.enqueue(text.encode(write(runOn(moment))));
          await wait(300);
        }
        window.isOver = true;
        stream.enqueue(text.encode(write(moment)));
        stream.enqueue(text.encode('event: end\\ndata: {}\\n\\n'));
        stream.close();
      },
    }));
  }
  if (address.includes('/logs') && !window.isOver)
    return tell({lines: [], note: null, next_after: '', has_more: false});
  const answer = await ask(address, options);
  if (!address.includes('/moment')) return answer;
  window.moments += 1;
  const moment = await answer.json();
  return tell(window.isOver ? moment : runOn(moment));
};
"""
# The second question for the workers is answered as `window.answerSecond` says.
SECOND = """
window.asked = 0;
const ask = window.fetch;
window.fetch = (address, options) => {
  if (address.split('?')[0] !== '/api/workers') return ask(address, options);
  window.asked += 1;
  return window.asked === 2 ? window.answerSecond(options.signal) : ask(address, options);
};
"""
NO_ANSWER = """
window.answerSecond = signal => new Promise((resolve, refuse) =>
  signal.addEventListener('abort', () => refuse(new DOMException('', 'AbortError'))));
"""
BROKEN_ANSWER = """
window.answerSecond = async () => new Response(
  new ReadableStream({pull(stream) { stream.error(new TypeError('network error')); }}));
"""


def test_a_run_is_followed_by_one_stream_and_nothing_else_is_asked(
    open_page: OpenPage, runs: Runs
) -> None:
    watched = open_page()
    watched.page.add_init_script(GOES_ON)
    page = watched.open(f"runs/{runs['greeting']}")
    expect(page.locator(".badge").first).to_have_text("running")
    expect(page.locator(".badge").first).to_have_text("completed", timeout=20_000)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("[window.streams, window.moments]") == [1, 1]


def test_lines_that_come_after_the_end_of_a_run_are_shown(open_page: OpenPage, runs: Runs) -> None:
    watched = open_page()
    watched.page.add_init_script(GOES_ON)
    page = watched.open(f"runs/{runs['orders']}/logs")
    expect(page.locator(".badge").first).to_have_text("running")
    expect(page.get_by_text("page 0 read", exact=True)).to_be_visible(timeout=20_000)


def test_a_page_that_was_left_while_it_asked_asks_no_more(open_page: OpenPage) -> None:
    page = open_workers(open_page, NO_ANSWER)
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("heading", name="Schedules")).to_be_visible()
    page.clock.run_for(20_000)
    assert page.evaluate("window.asked") == 2


def test_a_page_asks_again_after_an_answer_that_broke_off(open_page: OpenPage) -> None:
    page = open_workers(open_page, BROKEN_ANSWER)
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.clock.run_for(5_000)
    expect(page.get_by_role("alert")).to_have_count(0)


def open_workers(open_page: OpenPage, answer: str) -> Page:
    """The page of the workers, which has asked for them a second time."""
    watched = open_page()
    watched.page.clock.install()
    watched.page.add_init_script(SECOND + answer)
    page = watched.open("workers")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.clock.run_for(3_000)
    # The page's policy forbids the evaluation of texts, so that it is asked from here.
    wait_until(lambda: page.evaluate("window.asked") == 2, timeout_s=20, what="a second question")
    return page


def test_the_past_is_folded_once_however_its_events_are_filtered(
    open_page: OpenPage, runs: Runs
) -> None:
    watched = open_page()
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    page = watched.open(f"runs/{runs['orders']}/events?as_of=30")
    expect(page.get_by_text("up to version 30")).to_be_visible()
    page.get_by_label("Filter events").press_sequentially("nothing")
    expect(page.get_by_text("No event matches.")).to_be_visible()
    page.get_by_role("button", name="One event back").click()
    expect(page.get_by_text("up to version 29")).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert [url.split("?")[1] for url in asked if "/moment" in url] == ["version=30", "version=29"]
    assert len([url for url in asked if "/density" in url]) == 1


def test_of_several_runs_those_that_fail_are_counted(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open("runs?status=FAILED")
    expect(page.locator("tbody tr").nth(1)).to_be_visible()
    refused = f"**/api/executions/{runs['struck']}/rerun"
    page.route(
        "**/rerun",
        lambda route: route.fulfill(status=HTTPStatus.ACCEPTED, json={}),
    )
    page.route(
        refused,
        lambda route: route.fulfill(status=HTTPStatus.CONFLICT, json={"detail": "not this one"}),
    )
    for name in ("orders", "struck"):
        page.get_by_label(f"Choose run {runs[name]}").check()
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page.get_by_text("1 of 2 failed, the first: not this one")).to_be_visible()
