"""Rules of notifications are made, changed and removed in the console; late runs say so."""

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect
from tests.console.conftest import OpenPage
from tests.console.test_console_pages import PICTURES
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import Stack

TELLER = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: teller, path: ops/teller}
workload: {notification: {}}
workflow: [{step: tell, tool: {kind: noop}}]
"""
DUE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: due, path: ops/due}
workflow:
  - step: wait
    spec: {deadline: 1s}
    tool: {kind: external, mode: signal, correlation_key: console-due}
"""


def register(stack: Stack, text: str) -> None:
    answer = http.post(f"{stack.url('api')}/api/catalog/register", json={"content": text})
    assert answer.is_success, answer.text


def rule_tests(stack: Stack) -> list[dict[str, Any]]:
    """The tests of the only rule, as the API tells them."""
    (rule,) = http.get(f"{stack.url('api')}/api/notifications").json()["rules"]
    tests: list[dict[str, Any]] = rule["tests"]
    return tests


def check_tests_of(page: Page, row: Locator, told: list[dict[str, Any]]) -> None:
    """The row of a rule shows its only test, on a wide page and on a narrow one."""
    row.get_by_text("tested").click()
    tests = row.get_by_role("list", name="Latest tests of night").locator("li")
    expect(tests).to_have_count(1)
    expect(tests).to_contain_text(f"by {told[0]['actor']}")
    run = re.compile(rf"runs/{told[0]['execution_id']}$")
    expect(tests.get_by_role("link").first).to_have_attribute("href", run)
    page.screenshot(path=PICTURES / "notifications-rules.png")
    page.set_viewport_size({"width": 360, "height": 800})
    page.screenshot(path=PICTURES / "notifications-rules-360.png", full_page=True)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.set_viewport_size({"width": 1280, "height": 800})


def test_a_rule_with_quiet_hours_is_made_tested_changed_and_removed(
    open_page: OpenPage, stack: Stack
) -> None:
    register(stack, TELLER)
    page = open_page().open("notifications")
    page.get_by_role("button", name="New rule").click()
    form = page.get_by_role("form", name="New rule")
    form.get_by_label("Name").fill("night")
    form.get_by_label("Playbook that tells").fill("ops/teller")
    form.get_by_label("Of playbooks").fill("jobs/*")
    form.get_by_label("waiting for an approval").check()
    form.get_by_label("Quiet hours").check()
    form.get_by_label("Time zone").fill("Europe/Berlin")
    form.get_by_label("fri").check()
    form.get_by_role("group", name="Tell at once").get_by_label("failed", exact=True).check()
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / "notifications-form.png", full_page=True)
    page.set_viewport_size({"width": 360, "height": 800})
    page.screenshot(path=PICTURES / "notifications-form-360.png", full_page=True)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.set_viewport_size({"width": 1280, "height": 800})
    form.get_by_role("button", name="Save").click()
    row = page.get_by_role("row").filter(has_text="night")
    expect(row).to_contain_text("22:00-07:00 Europe/Berlin fri")
    (rule,) = http.get(f"{stack.url('api')}/api/notifications").json()["rules"]
    assert rule["causes"] == ["failed", "waiting"]
    assert (rule["pattern"], rule["playbook"]) == ("jobs/*", "ops/teller")
    assert rule["quiet"] == {
        "from": "22:00",
        "to": "07:00",
        "zone": "Europe/Berlin",
        "days": ["fri"],
    }
    assert rule["urgent"] == ["failed"]
    row.get_by_role("button", name="Test").click()
    expect(page.get_by_text("A test of night is sent")).to_be_visible()
    check_tests_of(page, row, rule_tests(stack))
    row.get_by_role("button", name="Edit").click()
    form = page.get_by_role("form", name="Rule night")
    form.get_by_label("Time zone").fill("Mars/Base")
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_text("quiet.zone")).to_be_visible()
    form.get_by_label("Quiet hours").uncheck()
    form.get_by_role("button", name="Save").click()
    expect(row).not_to_contain_text("22:00")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("Nobody is told of anything")).to_be_visible()
    assert http.get(f"{stack.url('api')}/api/notifications").json() == {"rules": []}


def test_a_run_that_is_late_says_so_and_goes_on(open_page: OpenPage, stack: Stack) -> None:
    register(stack, DUE)
    api = stack.url("api")
    run = stack.execute("ops/due", key="console-due")
    wait_until(
        lambda: bool(http.get(f"{api}/api/executions/{run}/status").json()["late"]),
        timeout_s=60,
        what="the deadline passes",
    )
    page = open_page().open(f"runs/{run}")
    expect(page.get_by_text("is late: its deadline passed")).to_be_visible()
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / "run-late.png")
    sent = http.post(f"{api}/api/signals/console-due", json={})
    assert sent.is_success, sent.text
    expect(page.get_by_text("is late: its deadline passed")).to_be_hidden()
