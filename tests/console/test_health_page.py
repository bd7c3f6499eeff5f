"""The page of health: what waits, what is safe, what was given up; and what is shown until then."""

import json
from typing import Any

import pytest
from playwright.sync_api import Route, expect
from tests.console.conftest import OpenPage
from tests.console.test_console_pages import AXE_OPTIONS, PICTURES, Theme
from tests.support.asking import http
from tests.support.stack import Stack

LETTER = {
    "sequence": 41,
    "subject": "noetl.commands.default.io.normal",
    "reason": "given up after 5 deliveries",
    "stream": "NOETL_COMMANDS",
    "consumer": "worker-default-io",
    "delivered": 5,
    "bytes": 900,
    "buried_at": "2026-01-01T12:00:00Z",
}
UNWELL = {
    "outbox": {"rows": 1200, "oldest_s": 340.0, "is_well": False},
    "projectors": [
        {"consumer": "projector-0-of-2", "lag": 0, "is_served": True},
        {"consumer": "projector-1-of-2", "lag": 52_000, "is_served": False},
    ],
    "settings": [
        {"name": "postgres fsync", "found": "off", "is_well": False, "way_out": "Set it to `on`."},
        {"name": "postgres full_page_writes", "found": "on", "is_well": True, "way_out": ""},
    ],
    "broker_settings": [
        {
            "name": "nats sync_interval",
            "found": "120 s",
            "is_well": False,
            "way_out": "A power failure may lose the messages of the last 120 s.",
            "meaning": "",
        }
    ],
    "problems": {},
}


def test_the_page_shows_what_the_planner_says_of_its_services(
    open_page: OpenPage, stack: Stack
) -> None:
    page = open_page().open("health")
    shown = http.get(f"{stack.url('api')}/api/health/services").json()
    assert shown["problems"] == {}
    lag = page.get_by_role("region", name="Each service")
    for projector in shown["projectors"]:
        expect(lag).to_contain_text(projector["consumer"])
    settings = page.get_by_role("region", name="Each setting").locator("tbody tr")
    listed = [*shown["settings"], *shown["broker_settings"]]
    assert "nats sync_interval" in {setting["name"] for setting in listed}
    expect(settings).to_have_count(len(listed))
    for setting in listed:
        row = settings.filter(has_text=setting["name"])
        expect(row).to_contain_text("as it must be" if setting["is_well"] else "not safe")
        expect(row).to_contain_text(setting["found"])
    expect(page.get_by_text("No message was given up.")).to_be_visible()
    expect(page.get_by_text("Nothing has left the ledger.")).to_be_visible()


def answer_with(body: Any, status: int = 200) -> Any:
    def answer(route: Route) -> None:
        route.fulfill(status=status, content_type="application/json", body=json.dumps(body))

    return answer


def test_a_letter_is_sent_again_from_the_page(open_page: OpenPage) -> None:
    watched = open_page()
    sent: list[str] = []

    def take(route: Route) -> None:
        sent.append(route.request.url)
        route.fulfill(status=200, content_type="application/json", body="{}")

    letters = {"letters": [LETTER], "next_after": 41, "has_more": False}
    watched.page.route("**/api/dead-letters?*", answer_with(letters))
    watched.page.route("**/api/dead-letters/41/requeue", take)
    page = watched.open("health")
    page.get_by_role("button", name="Send again letter 41").click()
    page.get_by_role("dialog").get_by_role("button", name="Send again").click()
    expect(page.get_by_text("The letter is sent again")).to_be_visible()
    assert len(sent) == 1


def test_what_is_not_known_or_refused_is_said(open_page: OpenPage) -> None:
    watched = open_page()
    unknown = {
        "outbox": None,
        "projectors": None,
        "settings": None,
        "broker_settings": None,
        "problems": {"outbox": "the ledger is away"},
    }
    watched.page.route("**/api/health/services", answer_with(unknown))
    page = watched.open("health")
    expect(page.get_by_text("not known").first).to_be_visible()
    expect(page.get_by_text("the ledger is away")).to_be_visible()
    refusal = {"code": "away", "detail": "The ledger does not answer.", "hint": "Ask again."}
    watched.page.unroute("**/api/health/services")
    watched.page.route("**/api/health/services", answer_with(refusal, 503))
    page = watched.open("health")
    expect(page.get_by_text("The ledger does not answer.")).to_be_visible()


def test_a_count_is_not_called_well_before_it_is_known(open_page: OpenPage) -> None:
    watched = open_page()
    refusal = answer_with({"code": "away", "detail": "Nobody answers.", "hint": ""}, 503)
    for address in ("**/api/workers", "**/api/pools", "**/api/dead-letters?*"):
        watched.page.route(address, refusal)
    page = watched.open("health")
    for tile in ("Workers heard", "Commands waiting", "Dead letters"):
        link = page.get_by_role("main").get_by_role("link", name=tile)
        expect(link).to_contain_text("not known")


def test_a_projector_that_asks_for_nothing_is_not_called_well(open_page: OpenPage) -> None:
    watched = open_page()
    idle = {"consumer": "projector-0-of-1", "lag": 0, "is_served": False}
    watched.page.route("**/api/health/services", answer_with({**UNWELL, "projectors": [idle]}))
    row = watched.open("health").get_by_role("row").filter(has_text="projector-0-of-1")
    expect(row).to_contain_text("nobody asks now")


def test_a_viewer_is_shown_what_a_viewer_may_see(open_page: OpenPage) -> None:
    watched = open_page()
    watched.page.route(
        "**/api/health/services",
        answer_with({"code": "forbidden", "detail": "no", "hint": ""}, 403),
    )
    page = watched.open("health")
    expect(page.get_by_text("is for administrators of the installation")).to_be_visible()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("dark", 360)])
def test_trouble_is_told_in_words_and_fits(
    open_page: OpenPage, axe_source: str, theme: Theme, width: int
) -> None:
    watched = open_page(color_scheme=theme, viewport={"width": width, "height": 800})
    letters = {"letters": [LETTER], "next_after": 41, "has_more": False}
    watched.page.route("**/api/health/services", answer_with(UNWELL))
    watched.page.route("**/api/dead-letters?*", answer_with(letters))
    page = watched.open("health")
    for words in (
        "not safe",
        "as it must be",
        "behind",
        "nobody reads",
        "Set it to `on`.",
        "can be lost",
    ):
        expect(page.get_by_text(words).filter(visible=True).first).to_be_visible()
    page.evaluate(axe_source)
    found: Any = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
    assert [violation["id"] for violation in found["violations"]] == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"health-unwell-{theme}-{width}.png", full_page=True)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
