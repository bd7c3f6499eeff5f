"""A stack with runs to look at, and a browser that is signed in and watched for mistakes."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.support.asking import http
from tests.support.polling import PATIENCE_S
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

from noetl_planner.api.console import console_files

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000
# A page is read and drawn by a machine that does other things too.
expect.set_options(timeout=WAIT_MS)
HOSTILE = (
    "<script>window.struck=1</script><img src=x onerror='window.struck=2'>"
    "\"'><svg onload=window.struck=3>{{7*7}}${7*7}\u202e\u0000javascript:window.struck=4"
).replace("\u0000", "")
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}


def a_playbook(name: str, workflow: str, workload: str = "{}") -> str:
    head = (
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {name}, path: demo/{name}}}\n"
    )
    return (
        f"{head}workload: {workload}\nworkflow:\n{textwrap.indent(textwrap.dedent(workflow), '  ')}"
    )


ORDERS = a_playbook(
    "import-orders",
    """\
    - step: fetch
      tool:
        kind: python
        code: |
          for page in range(40):
              print(f"page {page} read")
          print("ERROR the source answered slowly")
          result = {"orders": list(range(24))}
      next: {arcs: [{step: convert}]}
    - step: convert
      loop: {in: "{{ fetch['orders'] }}", iterator: order, spec: {mode: parallel}}
      tool:
        kind: python
        args: {order: "{{ iter.order }}"}
        code: |
          if order % 9 == 4:
              raise ValueError(f"order {order} has no amount")
          result = {"order": order, "amount": order * 3}
      next: {arcs: [{step: store, when: "{{ event.name == 'loop.done' }}"}]}
    - step: store
      tool: {kind: noop}
    """,
)
GREETING = a_playbook(
    "greeting",
    """\
    - step: greet
      tool: {kind: noop, result: {text: "hello {{ workload.who }}"}}
    """,
    "{who: world}",
)
RELEASE = a_playbook(
    "release",
    """\
    - step: ask
      tool: {kind: external, mode: approval, title: "Release it?", timeout: 1h}
    """,
)
STRUCK = a_playbook(
    "struck",
    """\
    - step: speak
      tool:
        kind: python
        args: {text: "{{ workload.text }}"}
        code: |
          print(text)
          result = {text: text, "rows": [{text: text}]}
      next: {arcs: [{step: fail}]}
    - step: fail
      tool:
        kind: python
        args: {text: "{{ workload.text }}"}
        code: |
          raise ValueError(text)
    """,
    '{text: ""}',
)


@dataclass
class Watched:
    """A page, and what it must not do: break its policy, raise, or run what is only text."""

    page: Page
    base: str
    mistakes: list[str] = field(default_factory=list)

    def open(self, path: str, *, wait: str = "main h1") -> Page:
        self.page.goto(f"{self.base}/console/{path}")
        self.page.locator(wait).first.wait_for(timeout=WAIT_MS)
        return self.page

    def check(self) -> None:
        assert self.mistakes == []
        assert self.page.evaluate("window.struck") is None, "a text of a run was executed"


@pytest.fixture(scope="session")
def browser_program() -> str:
    """Debian's Chromium, or whichever the machine has."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed: none of {', '.join(PROGRAMS)} (apt-get install)")
    if not console_files.has_bundle():
        pytest.skip("the console is not built here: make console")
    return program


# A file's own: while Playwright is open, no other event loop can begin in the process.
@pytest.fixture(scope="module")
def browser(browser_program: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=browser_program, args=["--no-sandbox"]
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def stack(browser_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The folder's stack; it comes after the browser's program, without which nobody needs it."""
    folder = tmp_path_factory.mktemp("console") / "stack"
    with running_stack(folder, "--workers", "1", "--no-s3") as running:
        yield running


@pytest.fixture(scope="session")
def runs(stack: Stack) -> dict[str, str]:
    """One run of each kind, by its name; they are over, but for the one that waits."""
    api = stack.url("api")
    found = {}
    for name, text in {
        "orders": ORDERS,
        "greeting": GREETING,
        "release": RELEASE,
        "struck": STRUCK,
    }.items():
        answer = http.post(f"{api}/api/catalog/register", json={"content": text})
        assert answer.is_success, answer.text
        inputs: dict[str, Any] = {"text": HOSTILE} if name == "struck" else {}
        found[name] = stack.execute(answer.json()["path"], key=name, **inputs)
    second = http.post(f"{api}/api/catalog/register", json={"content": GREETING + "# again\n"})
    assert second.is_success
    for name, run in found.items():
        if name != "release":
            wait_until(
                partial(is_over, api, run),
                timeout_s=PATIENCE_S,
                what=f"{name} ends",
            )
    wait_until(
        lambda: bool(http.get(f"{api}/api/approvals").json()["approvals"]),
        timeout_s=PATIENCE_S,
        what="the approval is asked for",
    )
    return found


def is_over(api: str, run: str) -> bool:
    return read_status(api, run) in ENDED


def read_status(api: str, run: str) -> str:
    answer = http.get(f"{api}/api/executions/{run}/status", timeout=PATIENCE_S)
    return str(answer.json()["status"])


def type_noetl(stack: Stack, *words: str) -> str:
    """What a verb prints that finds the stack by its folder."""
    environ = {"PATH": os.defpath, "HOME": str(stack.folder), "NOETL_HOME": str(stack.folder)}
    ran = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "noetl_cli", *words],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return ran.stdout


def find_address(stack: Stack, *words: str) -> str:
    """What `noetl open` would open."""
    printed = type_noetl(stack, "open", "--print", *words)
    return str(next(iter(re.findall(r"http://\S+", printed))))


OpenPage = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Browser, stack: Stack, runs: dict[str, str]) -> Iterator[OpenPage]:
    """Opens watched pages; each is checked at the end of its test."""
    contexts: list[BrowserContext] = []
    watched_pages: list[Watched] = []

    def open_watched(*, is_signed_in: bool = True, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        watched = Watched(context.new_page(), stack.url("api"))
        watched.page.set_default_timeout(WAIT_MS)
        watch_page(watched)
        watched_pages.append(watched)
        if is_signed_in:
            watched.page.goto(sign_in_address(stack))
            watched.page.wait_for_url("**/console/runs")
        return watched

    yield open_watched
    for watched in watched_pages:
        watched.check()
    for context in contexts:
        context.close()


def sign_in_address(stack: Stack) -> str:
    """An address that signs in; the stack's token makes its code."""
    api = stack.url("api")
    code = http.post(f"{api}/auth/codes", timeout=PATIENCE_S).json()["code"]
    return f"{api}/console/open#code={code}&next=/runs"


def watch_page(watched: Watched) -> None:
    page = watched.page
    page.on("pageerror", lambda error: watched.mistakes.append(f"raised: {error}"))
    page.on("dialog", lambda dialog: watched.mistakes.append(f"dialog: {dialog.message}"))
    page.on(
        "console",
        lambda message: (
            watched.mistakes.append(message.text)
            if "Content Security Policy" in message.text
            else None
        ),
    )
    # Whatever is asked of another host breaks the promise that nothing is.
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((watched.base, "blob:", "data:"))
            else watched.mistakes.append(f"asked {request.url}")
        ),
    )


@pytest.fixture(scope="session")
def axe_source() -> str:
    """The program of axe, from the packages that the console is built with."""
    source = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"
    return source.read_text("utf-8")
