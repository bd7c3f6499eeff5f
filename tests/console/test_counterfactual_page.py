"""What a run would have decided under another version of its playbook, asked for in a browser."""

from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.console.conftest import OpenPage, a_playbook, is_over
from tests.console.test_console_pages import AXE_OPTIONS, PICTURES, Theme
from tests.console.test_jobs_in_the_console import press_until_focused
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

ROUTE = a_playbook(
    "choose-route",
    """\
    - step: measure
      tool: {kind: noop, result: {n: 7}}
      next:
        arcs:
          - {step: large, when: "{{ measure.data.n > workload.limit }}"}
          - {step: small}
    - {step: large, tool: {kind: noop, result: 1}}
    - {step: small, tool: {kind: noop, result: 2}}
    """,
    "{limit: 10}",
)


@pytest.fixture(scope="session")
def route_run(stack: Stack) -> str:
    """A run of the first of three versions: the second turns another way, the third works other."""
    api = stack.url("api")
    for text in (ROUTE, ROUTE.replace("workload.limit", "5"), ROUTE.replace("n: 7", "n: 8")):
        answer = http.post(f"{api}/api/catalog/register", json={"content": text})
        assert answer.is_success, answer.text
    begun = http.post(f"{api}/api/execute", json={"path": "demo/choose-route", "version": 1})
    run = str(begun.raise_for_status().json()["execution_id"])
    wait_until(lambda: is_over(api, run), timeout_s=PATIENCE_S, what="the run ends")
    return run


def find_row(page: Page, step: str) -> Any:
    return page.locator("tbody tr").filter(has=page.get_by_text(step, exact=True)).first


def test_another_version_is_chosen_and_shown_beside_what_was(
    open_page: OpenPage, route_run: str
) -> None:
    page = open_page().open(f"runs/{route_run}")
    page.get_by_role("link", name="Counterfactual").click()
    expect(page.get_by_label("Text of the playbook")).to_contain_text("choose-route")
    page.get_by_label("Decide under").select_option("2")
    expect(
        page.get_by_text(f"noetl replay counterfactual {route_run} --version 2", exact=True)
    ).to_be_visible()
    page.get_by_role("button", name="Decide").click()
    measure = find_row(page, "measure")
    expect(measure).to_contain_text("→ small")
    expect(measure).to_contain_text("→ large")
    expect(find_row(page, "large")).to_contain_text("nothing: it never ran")
    expect(find_row(page, "small")).to_contain_text("would not run")
    expect(page.get_by_text("activations would go otherwise")).to_be_visible()
    page.get_by_label("Decide under").select_option("3")
    expect(page.get_by_role("heading", name="What would have been decided")).to_have_count(0)
    page.get_by_role("button", name="Decide").click()
    expect(measure).to_contain_text("outcome of other work, assumed")
    expect(page.get_by_text("if the changed work comes to the same")).to_be_visible()


def test_a_text_is_edited_and_decided_by_the_keyboard_alone(
    open_page: OpenPage, route_run: str
) -> None:
    page = open_page().open(f"runs/{route_run}/counterfactual")
    editor = page.get_by_label("Text of the playbook")
    expect(editor).to_contain_text("choose-route")
    press_until_focused(page, "Decide")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Every decision is the same.")).to_be_visible()
    expect(find_row(page, "measure")).to_contain_text("recorded outcome")
    page.keyboard.press("Tab")
    expect(editor).to_be_focused()
    page.keyboard.press("Control+End")
    page.keyboard.type("workflow: 1")
    expect(editor).to_contain_text("workflow: 1")
    # The first closes the completions, the second lets Tab leave the editor.
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Decide")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_text("Every decision is the same.")).to_have_count(0)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("dark", 360)])
def test_the_decided_steps_are_for_everybody_and_fit(
    open_page: OpenPage, route_run: str, axe_source: str, theme: Theme, width: int
) -> None:
    watched = open_page(color_scheme=theme, viewport={"width": width, "height": 800})
    page = watched.open(f"runs/{route_run}/counterfactual?other=2")
    page.get_by_role("button", name="Decide").click()
    expect(page.get_by_role("heading", name="What would have been decided")).to_be_visible()
    page.evaluate(axe_source)
    found: Any = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
    assert [violation["id"] for violation in found["violations"]] == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"decided-{theme}-{width}.png", full_page=True)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
