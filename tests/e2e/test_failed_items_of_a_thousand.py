"""Of a thousand items three fail: they are shown, and run alone although their worker is killed."""

from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

import msgspec
import pytest
from tests.e2e.command_line import PATIENCE_S, CommandLine
from tests.support.parity import assert_parity
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)

COUNT = 1_000
BAD = (17, 500, 999)
PLAYBOOK = """\
workload: {url: ""}
workflow:
  - step: each
    loop: {in: "{{ range(1000) | list }}", iterator: n, spec: SPEC}
    tool: {kind: http, url: "{{ workload.url }}/{{ iter.n }}"}
    set:
      ctx.all: "{{ each.results | map(attribute='body') | map(attribute='n') | list }}"
      ctx.stats: "{{ each.stats }}"
      ctx.status: "{{ fanin.status }}"
    next: {arcs: [{step: after}]}
  - step: after
    tool: {kind: noop, result: "{{ ctx.all | sum }}"}
    set: {ctx.sum: "{{ after }}"}
"""


class Shop(ThreadingHTTPServer):
    """Answers each number with itself, and counts who asked; some numbers it refuses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.bad: frozenset[int] = frozenset()
        self.held: int | None = None
        self.is_asked_for_held = Event()
        self.asked: Counter[int] = Counter()
        self.lock = Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def open(self, *, bad: tuple[int, ...] = (), held: int | None = None) -> None:
        """Begin to count anew; nobody gets an answer of the held number at the first time."""
        self.bad, self.held, self.asked = frozenset(bad), held, Counter()
        self.is_asked_for_held.clear()


class _Answer(BaseHTTPRequestHandler):
    server: Shop
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        number = int(self.path.removeprefix("/"))
        shop = self.server
        with shop.lock:
            shop.asked[number] += 1
            is_held = number == shop.held and shop.asked[number] == 1
        if is_held:
            shop.is_asked_for_held.set()
            # Whoever asked is dead before this is over.
            Event().wait(PATIENCE_S)
            return
        body = msgspec.json.encode({"n": number})
        self.send_response(422 if number in shop.bad else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture
def shop() -> Iterator[Shop]:
    server = Shop()
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "spec",
    [
        (
            "{mode: fanout, max_in_flight: 8, fanout: {shard_size: 25, max_shard_retries: 1},"
            " frame: {row_concurrency: 8}}"
        ),
        "{mode: parallel, max_in_flight: 60, max_attempts: 3}",
    ],
    ids=["fan-out", "items"],
)
def test_three_of_a_thousand_items_run_again_alone(
    command_line: CommandLine, stack: Stack, shop: Shop, spec: str
) -> None:
    file = command_line.write("thousand", PLAYBOOK.replace("SPEC", spec))
    inputs = ("--set", f"url={shop.url}")
    shop.open()
    smooth = command_line.begin(file, *inputs)
    expected = command_line.wait_for(smooth, "COMPLETED")["variables"]
    assert expected["sum"] == sum(range(COUNT))
    shop.open(bad=BAD)
    failed = command_line.begin(file, *inputs)
    command_line.wait_for(failed, "FAILED")

    shown = command_line.type("items", failed, "each", "--failed", "--output", "json")
    assert shown.code == 0, shown
    items = [msgspec.json.decode(line) for line in shown.out.splitlines()]
    assert [(item["index"], item["input"], item["error"]["status"]) for item in items] == [
        (number, number, 422) for number in BAD
    ]
    assert "1,000 in all, 997 completed, 3 failed" in shown.err
    table = command_line.type("items", failed, "--failed").out.splitlines()
    assert table[0].split() == ["INDEX", "STATE", "ATTEMPTS", "SECONDS", "INPUT", "ERROR"]
    assert [line.split()[:2] for line in table[1:]] == [[str(n), "failed"] for n in BAD]

    shop.open(held=500)
    begun = command_line.type("rerun", failed, "--failed", "--detach")
    assert begun.code == 0, begun
    assert "step each: 3 items run again, 997 results are taken over" in begun.err
    again = begun.out.strip()
    assert shop.is_asked_for_held.wait(PATIENCE_S)
    stack.kill("worker-1")
    variables = command_line.wait_for(again, "COMPLETED")["variables"]
    # The worker died while one of them was under way: it was asked for twice.
    assert shop.asked.keys() == set(BAD)
    assert shop.asked[500] == 2
    assert variables.pop("stats") == {**expected.pop("stats"), "retried": 1}
    assert variables == expected
    folder = str(command_line.folder / "evidence")
    assert command_line.type("replay", "verify", again, "--output", folder).code == 0
    assert_parity(stack, again)
    again_shown = command_line.type("items", again, "each", "--all", "--output", "json")
    states = Counter(
        (item["state"], item["taken_from"] is not None)
        for item in map(msgspec.json.decode, again_shown.out.splitlines())
    )
    assert states == {("completed", True): COUNT - len(BAD), ("completed", False): len(BAD)}
    refused = command_line.type("rerun", again, "--failed", "--detach")
    assert refused.code != 0
    assert "no loop has items that did not complete" in refused.err
