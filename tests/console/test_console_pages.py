"""Every page: for everybody (axe), at every width, in both themes, within its budget of bytes."""

import re
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Page, expect
from tests.console.conftest import OpenPage, type_noetl
from tests.support.asking import http
from tests.support.stack import Stack

PAGES = {
    "runs": "runs",
    "run": "runs/{orders}",
    "past": "runs/{orders}?as_of=30",
    "items": "runs/{orders}/items",
    "logs": "runs/{orders}/logs",
    "events": "runs/{orders}/events",
    "payloads": "runs/{orders}/payloads?step=fetch",
    "context": "runs/{greeting}/context",
    "compare": "runs/{greeting}/compare?before=1",
    "counterfactual": "runs/{greeting}/counterfactual?other=2",
    "approvals": "approvals",
    "playbooks": "playbooks",
    "playbook": "playbooks/demo/greeting",
    "new-playbook": "new-playbook",
    "schedules": "schedules",
    "webhooks": "webhooks",
    "notifications": "notifications",
    "workers": "workers",
    "health": "health",
    "dead-letters": "dead-letters",
    "credentials": "credentials",
    "audit": "audit",
    "nowhere": "nowhere",
}
# axe's rules of WCAG 2.1, A and AA, and its best practices.
AXE_OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
# Those of its rules for which the colours of a theme matter.
AXE_COLORS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
FIRST_PAGE_BYTES_MAX = 180_000
# What is smaller is sent as it is.
PLAIN_BYTES_MAX = 512
PICTURES = Path(__file__).parents[2] / "build/console-pictures"
Theme = Literal["light", "dark"]


@pytest.mark.parametrize(
    ("width", "rules_by_theme"),
    [(1280, {"light": AXE_OPTIONS, "dark": AXE_COLORS}), (360, {"dark": None})],
    ids=["1280", "360"],
)
def test_every_page_is_for_everybody_fits_its_window_and_is_kept_as_a_picture(
    open_page: OpenPage,
    runs: dict[str, str],
    axe_source: str,
    width: int,
    rules_by_theme: dict[Theme, dict[str, Any] | None],
) -> None:
    first, *_ = rules_by_theme
    watched = open_page(color_scheme=first, viewport={"width": width, "height": 800})
    PICTURES.mkdir(parents=True, exist_ok=True)
    too_wide, broken = list[str](), list[str]()
    for name, path in PAGES.items():
        watched.page.emulate_media(color_scheme=first)
        page = watched.open(path.format(**runs))
        page.wait_for_load_state("networkidle")
        for theme, rules in rules_by_theme.items():
            # A page follows the theme of its machine while it is open.
            page.emulate_media(color_scheme=theme)
            page.screenshot(path=PICTURES / f"{name}-{theme}-{width}.png")
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                too_wide.append(f"{name}, {theme}")
            if rules is not None:
                found = list_broken_rules(page, axe_source, rules)
                broken += [f"{name}, {theme}: {rule}" for rule in found]
    assert too_wide == []
    assert not broken, "\n".join(broken)


def list_broken_rules(page: Page, axe_source: str, rules: dict[str, Any]) -> list[str]:
    """List what axe finds wrong with a page, with three places of each rule."""
    page.evaluate(axe_source)
    found: Any = page.evaluate("options => axe.run(document, options)", rules)
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for violation in found["violations"]
        for node in violation["nodes"][:3]
    ]


@pytest.mark.parametrize(
    ("page", "status"),
    [
        *((part, HTTPStatus.OK) for part in ("", "/items", "/logs", "/events", "/payloads")),
        *((part, HTTPStatus.OK) for part in ("/context", "/compare", "/compare?run={struck}")),
        ("/counterfactual?other=1", HTTPStatus.CONFLICT),
    ],
)
def test_each_page_of_a_run_is_json_at_a_moment(
    stack: Stack, runs: dict[str, str], page: str, status: HTTPStatus
) -> None:
    path, _, query = page.format(**runs).partition("?")
    answer = http.get(
        f"{stack.url('api')}/console/runs/{runs['orders']}{path}?as_of=40&{query}",
        headers={"Accept": "application/json"},
        follow_redirects=True,
    )
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/")
    assert answer.json()


def test_the_first_page_is_small_and_loads_neither_graph_nor_editor(
    stack: Stack, open_page: OpenPage
) -> None:
    watched = open_page()
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    watched.open("runs")
    watched.page.wait_for_load_state("networkidle")
    files = {url for url in asked if "/console/" in url}
    sizes = {url: len(read_over_the_wire(url)) for url in files if not url.endswith("/runs")}
    assert not [url for url in files if re.search(r"StepGraph|YamlEditor|elk", url)]
    assert 0 < sum(sizes.values()) < FIRST_PAGE_BYTES_MAX, sizes


def read_over_the_wire(url: str) -> bytes:
    """What goes over the wire."""
    with httpx.stream("GET", url, headers={"Accept-Encoding": "br"}) as answer:
        data = b"".join(answer.iter_raw())
    assert len(data) < PLAIN_BYTES_MAX or answer.headers["content-encoding"] == "br", url
    return data


def test_a_viewer_is_offered_nothing_that_is_refused(
    open_page: OpenPage, stack: Stack, runs: dict[str, str]
) -> None:
    printed = type_noetl(stack, "key", "create", "onlooker", "--role", "viewer")
    key = next(word for word in printed.split() if word.startswith("noetl_"))
    page = open_page(is_signed_in=False).open("runs")
    page.get_by_label("Owner's token or API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.get_by_role("link", name="Audit log")).to_have_count(0)
    expect(page.get_by_role("link", name="Run a playbook")).to_have_count(0)
    page.goto(f"{stack.url('api')}/console/runs/{runs['orders']}")
    expect(page.get_by_text("Failed at convert")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)
    page.get_by_role("link", name="Context").click()
    expect(page.get_by_text("do not let you read")).to_be_visible()


def test_a_page_says_what_is_wrong_and_tries_again(
    open_page: OpenPage, runs: dict[str, str]
) -> None:
    watched = open_page()
    page = watched.open("runs/72057594037927999", wait="[role=alert]")
    expect(page.get_by_role("alert")).to_contain_text("there is no execution")
    page.route("**/api/catalog*", lambda route: route.abort())
    page = watched.open("playbooks", wait="[role=alert]")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/api/catalog*")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("link", name="demo/greeting")).to_be_visible()
