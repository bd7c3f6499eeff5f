# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Every worker is killed while a task waits, or reads pages, on a real stack with two of them."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.e2e.command_line import CommandLine
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

from noetl_worker.pipeline.checkpoints import PAGES

pytestmark = pytest.mark.timeout(300)

LEASE_S = 5
WAIT_S = 8
# An event is stored after it happened: the first of two perhaps later than the second.
STORED_LATE_S = 2
PAGES_IN_ALL = 150
SETTINGS = (
    *("--workers", "2", "--no-s3"),
    *("--set", f"MESSAGING_LEASE_S={LEASE_S}"),
    *("--set", f"WORKER_LEASE_S={LEASE_S}"),
    *("--set", f"PLANNER_COMMAND_LEASE_S={LEASE_S}"),
    *("--set", "PLANNER_COMMAND_HEARTBEAT_S=1"),
    *("--set", "WORKER_HELD_WAIT_S=1"),
    *("--set", "REAPER_STALLED_AGE_S=2"),
)
REST = f"""\
workflow:
  - step: rest
    tool:
      - {{name: before, kind: noop, result: {{n: 1}}, spec: {{policy: {{rules: [{{else: {{then: {{do: continue, delay: {WAIT_S}, set: {{ctx.begun: true}}}}}}}}]}}}}}}
      - {{name: after, kind: noop, result: "{{{{ before.n + 1 }}}}"}}
    set: {{ctx.found: "{{{{ rest }}}}"}}
"""
LONG_REST = REST.replace(f"delay: {WAIT_S}", "delay: 300d")
RETRY = f"""\
workload: {{url: ""}}
workflow:
  - step: ask
    tool: {{kind: http, url: "{{{{ workload.url }}}}/flaky"}}
    retry: {{max_attempts: 2, delay: {WAIT_S}}}
    set: {{ctx.found: "{{{{ ask.body.n }}}}"}}
"""
READ = """\
workload: {url: ""}
workflow:
  - step: read
    tool: {kind: http, url: "{{ workload.url }}/pages", params: {page: 1}}
    retry:
      - when: "{{ response.data.next }}"
        then:
          delay: DELAY
          next_call: {params: {page: "{{ (response.data.page | int) + 1 }}"}}
          collect: {strategy: append, path: rows, into: rows}
    set: {ctx.numbers: "{{ read.rows | map(attribute='n') | list }}"}
"""


class Source(ThreadingHTTPServer):
    """Serves pages of one row, and counts; page `held` is answered when it is let go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[int] = []
        self.flaky: list[float] = []
        self.held = 0
        self.let_go = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Source

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/flaky":
            self.server.flaky.append(time.monotonic())
            self._answer({"n": 7}, status=503 if len(self.server.flaky) == 1 else 200)
            return
        number = int(parse_qs(asked.query)["page"][0])
        self.server.asked.append(number)
        if number == self.server.held:
            self.server.let_go.wait(60)
        self._answer({"page": number, "rows": [{"n": number}], "next": number < PAGES_IN_ALL})

    def _answer(self, body: Any, *, status: int = 200) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            # Whoever asked was killed.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        del format, args


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("waits") / "stack", *SETTINGS) as running:
        yield running


@pytest.fixture
def source() -> Iterator[Source]:
    with Source() as found:
        serving = threading.Thread(target=found.serve_forever, daemon=True)
        serving.start()
        yield found
        found.let_go.set()
        found.shutdown()
        serving.join()


def kill_workers(stack: Stack) -> None:
    """Kill every worker at the same time, and wait for their successors."""
    names = stack.names("worker")
    assert len(names) == 2
    former = {name: stack.send(name, signal.SIGKILL) for name in names}
    for name in names:
        stack.wait_replaced(name, former=former[name])


def waited_s(command_line: CommandLine, execution_id: str) -> float:
    """How long the command was parked, by when its events were stored."""
    times = {
        item["event_type"]: datetime.fromisoformat(str(item["created_at"]))
        for item in command_line.events(execution_id)
    }
    return (times["command.resumed"] - times["command.parked"]).total_seconds()


def read_pages(command_line: CommandLine, source: Source, *, delay: str) -> str:
    file = command_line.write("read", READ.replace("DELAY", delay))
    return command_line.begin(file, "--set", f"url={source.url}")


def test_a_rest_goes_on_while_no_worker_and_no_planner_lives(
    command_line: CommandLine, stack: Stack
) -> None:
    execution_id = command_line.begin(command_line.write("rest", REST))
    command_line.wait_for_event(execution_id, "command.parked")
    kill_workers(stack)
    for name in stack.names("planner"):
        stack.kill(name)
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert shown["variables"] == {"begun": True, "found": 2}
    kinds = command_line.kinds(execution_id)
    assert (kinds.count("command.parked"), kinds.count("command.resumed")) == (1, 1)
    assert "command.reissued" not in kinds
    assert waited_s(command_line, execution_id) >= WAIT_S - STORED_LATE_S
    assert_parity(stack, execution_id)


def test_a_retry_counts_its_tries_over_killed_workers(
    command_line: CommandLine, stack: Stack, source: Source
) -> None:
    file = command_line.write("ask", RETRY)
    execution_id = command_line.begin(file, "--set", f"url={source.url}")
    command_line.wait_for_event(execution_id, "command.parked")
    kill_workers(stack)
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert shown["variables"] == {"found": 7}
    first_at, second_at = source.flaky
    assert second_at - first_at >= WAIT_S


def test_a_repeat_goes_on_at_its_last_checkpoint_when_its_worker_is_killed_in_a_page(
    command_line: CommandLine, stack: Stack, source: Source
) -> None:
    source.held = 70
    execution_id = read_pages(command_line, source, delay="0")
    wait_until(lambda: 70 in source.asked, timeout_s=60, what="page 70 is asked for")
    kill_workers(stack)
    source.let_go.set()
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert shown["variables"]["numbers"] == list(range(1, PAGES_IN_ALL + 1))
    assert PAGES_IN_ALL < len(source.asked) <= PAGES_IN_ALL + PAGES
    assert_parity(stack, execution_id)


def test_a_repeat_that_waits_at_page_70_reads_no_page_again(
    command_line: CommandLine, stack: Stack, source: Source
) -> None:
    execution_id = read_pages(
        command_line, source, delay=f'"{{{{ {WAIT_S} if iter.calls == 70 else 0 }}}}"'
    )
    command_line.wait_for_event(execution_id, "command.parked")
    kill_workers(stack)
    shown = command_line.wait_for(execution_id, "COMPLETED")
    assert shown["variables"]["numbers"] == list(range(1, PAGES_IN_ALL + 1))
    assert source.asked == list(range(1, PAGES_IN_ALL + 1))


def test_a_wait_of_most_of_a_year_ends_when_its_execution_is_cancelled(
    command_line: CommandLine,
) -> None:
    execution_id = command_line.begin(command_line.write("long", LONG_REST))
    command_line.wait_for_event(execution_id, "command.parked")
    cancelled = command_line.type("cancel", execution_id)
    assert cancelled.code == 0, cancelled
    command_line.wait_for(execution_id, "CANCELLED")
    assert "command.resumed" not in command_line.kinds(execution_id)
