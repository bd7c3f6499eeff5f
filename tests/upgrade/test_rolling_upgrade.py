"""An upgrade of one service at a time while work goes on, between two commits, and back again.

The order is that of docs/how-to/upgrade.md.
"""

import signal
import threading
from collections.abc import Iterator
from typing import Self

import httpx
import pytest
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import PATIENCE_S, Stack, running_stack
from tests.support.two_commits import NEWER, OLDER, TwoCommits, find_earlier_commit

pytestmark = pytest.mark.timeout(900)

ORDER = ("projector", "planner", "worker", "outbox", "reaper")
ITEMS, TOTAL = 6, 55
# What has begun before a service is replaced, and what must end after it.
RUNS_BETWEEN = 4
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: rolling, path: upgrade/rolling}}
workflow:
  - step: square
    loop: {{in: "{{{{ range({ITEMS}) | list }}}}", iterator: n, spec: {{mode: parallel}}}}
    tool:
      kind: python
      input: {{n: "{{{{ iter.n }}}}"}}
      code: |
        import time

        def main(n):
            time.sleep(0.2)
            return {{"square": int(n) ** 2}}
    next: {{arcs: [{{step: sum}}]}}
  - step: sum
    tool:
      kind: noop
      result: {{total: "{{{{ square.results | map(attribute='square') | sum }}}}"}}
"""


class Load:
    """Starts one execution after the other for as long as the block lasts."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.executions: list[str] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._start_executions)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        """Wait until so many executions have begun and ended from now on."""
        before = len(self.executions)

        def are_there() -> bool:
            assert self.failure is None, self.failure
            return len(self.executions) >= before + count

        wait_until(are_there, timeout_s=PATIENCE_S, what=f"{count} more executions")
        for execution in self.executions[before : before + count]:
            wait_for_end(self._stack, execution)

    def _start_executions(self) -> None:
        try:
            while not self._stop.wait(0.5):
                key = f"rolling-{len(self.executions)}"
                self.executions.append(self._stack.execute("upgrade/rolling", key=key))
        except BaseException as failure:  # noqa: BLE001 - the test shows it
            self.failure = failure


def find_status(stack: Stack, execution: str) -> str:
    """Ask for a status; empty while the API is being replaced."""
    try:
        answer = http.get(f"{stack.url('api')}/api/executions/{execution}/status", timeout=10)
    except httpx.HTTPError:
        return ""
    return str(answer.json()["status"]) if answer.is_success else ""


def wait_for_end(stack: Stack, execution: str) -> None:
    def is_over() -> bool:
        status = find_status(stack, execution)
        assert status not in {"FAILED", "CANCELLED"}, execution
        return status == "COMPLETED"

    wait_until(is_over, timeout_s=PATIENCE_S, what=f"{execution} completes")


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> TwoCommits:
    return TwoCommits(tmp_path_factory.mktemp("commits"), find_earlier_commit())


@pytest.fixture(scope="module")
def stack(commits: TwoCommits, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of the earlier commit."""
    folder = tmp_path_factory.mktemp("rolling") / "stack"
    with running_stack(folder, "--workers", "2", python=commits.python) as started:
        answer = http.post(
            f"{started.url('api')}/api/catalog/register",
            content=PLAYBOOK,
            headers={"Content-Type": "text/yaml"},
            timeout=30,
        )
        assert answer.is_success, answer.text
        yield started


def prepare_platform(commits: TwoCommits, stack: Stack, tree: str) -> None:
    """Migrate and make the streams, as the platform chart's jobs do."""
    commits.choose("storage", tree)
    commits.choose("messaging", tree)
    dsn = {"NOETL_STORAGE_POSTGRES_DSN": stack.url("postgres")}
    commits.run("-m", "noetl_storage", "migrate", environ=dsn)
    broker = {"NOETL_MESSAGING_NATS_URL": stack.url("nats"), "NOETL_MESSAGING_REPLICAS": "1"}
    commits.run("-m", "noetl_messaging", "apply", environ=broker)


def replace_service(commits: TwoCommits, stack: Stack, service: str, tree: str) -> None:
    """Have every process of a service end and start again from a tree, one after the other."""
    commits.choose(service, tree)
    for name in stack.names(service):
        former = stack.send(name, signal.SIGTERM)
        stack.wait_replaced(name, former=former)
        pid = stack.pid(name)
        assert pid is not None
        assert commits.find_tree(pid) == tree


def check_all(stack: Stack, executions: list[str]) -> None:
    """All that was accepted has ended once, with the right result, and replays to its rows."""
    assert len(set(executions)) == len(executions)
    for execution in executions:
        wait_for_end(stack, execution)
        answer = http.get(f"{stack.url('api')}/api/result/{execution}/sum", timeout=30)
        assert answer.json()["data"] == {"total": TOTAL}, answer.text
        assert_parity(stack, execution)


def test_services_are_upgraded_and_rolled_back_one_by_one_under_load(
    commits: TwoCommits, stack: Stack
) -> None:
    with Load(stack) as load:
        load.wait_for_more(RUNS_BETWEEN)
        prepare_platform(commits, stack, NEWER)
        for service in ORDER:
            replace_service(commits, stack, service, NEWER)
            load.wait_for_more(RUNS_BETWEEN)
        # The schema stays: migrations only go forward.
        for service in reversed(ORDER):
            replace_service(commits, stack, service, OLDER)
            load.wait_for_more(RUNS_BETWEEN)
    assert load.failure is None
    check_all(stack, load.executions)
