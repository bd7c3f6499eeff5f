"""Two runs side by side: what differs in inputs, steps and results."""

from functools import partial
from subprocess import CalledProcessError
from typing import Any

import pytest
from playwright.sync_api import expect
from tests.console.conftest import OpenPage, is_over, type_noetl
from tests.console.test_console_pages import AXE_OPTIONS, PICTURES, Theme
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack

from noetl_contracts import codec

Runs = dict[str, str]


@pytest.fixture(scope="session")
def other_greetings(stack: Stack, runs: Runs) -> Runs:
    """A second run with the inputs of the first, and one that greets somebody else."""
    found = {
        "same": stack.execute("demo/greeting", key="same"),
        "ann": stack.execute("demo/greeting", key="ann", who="Ann"),
    }
    for run in found.values():
        wait_until(
            partial(is_over, stack.url("api"), run),
            timeout_s=PATIENCE_S,
            what="the greeting ends",
        )
    return found


def test_runs_with_other_inputs_differ_in_inputs_and_result(
    open_page: OpenPage, runs: Runs, other_greetings: Runs
) -> None:
    page = open_page().open(f"runs/{runs['greeting']}/compare")
    page.get_by_label("Other run").focus()
    page.keyboard.type(other_greetings["ann"])
    page.keyboard.press("Tab")
    expect(page.get_by_role("region", name="Inputs that differ")).to_contain_text("Ann")
    greet = page.get_by_role("region", name="Steps of both runs").locator("tbody tr")
    expect(greet.locator("td").last).to_have_text("result")
    command = f"noetl diff {runs['greeting']} {other_greetings['ann']}"
    expect(page.get_by_text(command, exact=True)).to_be_visible()


def test_runs_with_the_same_inputs_do_not_differ(
    open_page: OpenPage, runs: Runs, other_greetings: Runs
) -> None:
    page = open_page().open(f"runs/{runs['greeting']}/compare?run={other_greetings['same']}")
    expect(page.get_by_text("Both have the same inputs.")).to_be_visible()
    greet = page.get_by_role("region", name="Steps of both runs").locator("tbody tr")
    expect(greet.locator("td").last).to_have_text("nothing")


def test_the_command_compares_as_the_page_does(
    stack: Stack, runs: Runs, other_greetings: Runs
) -> None:
    alike = type_noetl(stack, "diff", runs["greeting"], other_greetings["same"])
    assert alike.splitlines()[-1] == "alike"
    words = ("diff", runs["greeting"], other_greetings["ann"], "--output", "json")
    with pytest.raises(CalledProcessError) as differ:
        type_noetl(stack, *words)
    assert differ.value.returncode == 1
    shown = codec.decode_json(differ.value.stdout)
    assert [(item["name"], item["one"], item["other"]) for item in shown["inputs"]] == [
        ("who", "world", "Ann")
    ]
    assert [step["differences"] for step in shown["steps"]] == [["result"]]


def test_steps_of_another_playbook_are_named_as_its_own(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open(f"runs/{runs['greeting']}/compare?run={runs['orders']}")
    rows = page.get_by_role("region", name="Steps of both runs").locator("tbody tr")
    expect(rows.filter(has_text="greet")).to_contain_text("only in the first run")
    expect(rows.filter(has_text="convert")).to_contain_text("only in the second run")


def test_a_run_that_is_not_there_is_said(open_page: OpenPage, runs: Runs) -> None:
    page = open_page().open(f"runs/{runs['greeting']}/compare?run=72057594037927999")
    expect(page.get_by_role("alert")).to_contain_text("there is no execution")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 360)])
def test_the_comparison_is_for_everybody_and_fits(
    open_page: OpenPage,
    runs: Runs,
    other_greetings: Runs,
    axe_source: str,
    theme: Theme,
    width: int,
) -> None:
    watched = open_page(color_scheme=theme, viewport={"width": width, "height": 800})
    page = watched.open(f"runs/{runs['greeting']}/compare?before=1&run={other_greetings['ann']}")
    expect(page.get_by_role("region", name="Inputs that differ")).to_be_visible()
    page.evaluate(axe_source)
    found: Any = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
    assert [violation["id"] for violation in found["violations"]] == []
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"two-runs-{theme}-{width}.png", full_page=True)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
