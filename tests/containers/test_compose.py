"""The stack of compose.yaml as it is in the repository: started, used, killed, scaled."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from tests.support import containers
from tests.support.containers import ComposedStack
from tests.support.servers import wait_until

from noetl_cli.stack.processes import loopback

ITEMS, PAUSE_S, SUM = 40, 0.8, 20_540
PLAYBOOK = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: squares, path: containers/squares}}
workload: {{count: {ITEMS}, pause_s: {PAUSE_S}}}
workflow:
  - step: square
    loop:
      in: "{{{{ range(workload.count | int) | list }}}}"
      iterator: number
      spec: {{mode: parallel, max_in_flight: 4}}
    tool:
      kind: python
      input: {{number: "{{{{ iter.number }}}}", pause_s: "{{{{ workload.pause_s }}}}"}}
      code: |
        import time

        def main(number, pause_s):
            time.sleep(float(pause_s))
            return {{"square": int(number) * int(number)}}
    next:
      arcs:
        - step: end
  - step: end
    tool:
      kind: noop
      result:
        total: "{{{{ square.results | map(attribute='square') | sum }}}}"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposedStack]:
    folder = tmp_path_factory.mktemp("composed")
    (folder / "squares.yaml").write_text(PLAYBOOK)
    port = loopback.choose_ports(["api"], before={})["api"]
    composed = ComposedStack(folder, name=f"noetl-test-{os.getpid()}", port=port)
    try:
        composed.start()
        yield composed
    finally:
        composed.compose("down", "--volumes", "--timeout", "20")


def run_squares(stack: ComposedStack) -> str:
    printed = stack.noetl("run", str(stack.folder / "squares.yaml"), "--json")
    last = msgspec.json.decode(printed.splitlines()[-1])
    return str(last["execution_id"])


def read_total(stack: ComposedStack, execution: str) -> int:
    match = re.search(r"total\W+(\d+)", stack.noetl("result", execution, "end"))
    assert match
    return int(match[1])


def test_a_playbook_runs_with_the_command_line_of_this_machine(stack: ComposedStack) -> None:
    execution = run_squares(stack)
    assert read_total(stack, execution) == SUM
    assert "admin" in stack.noetl("whoami")


def test_down_and_up_again_keep_what_was_stored(stack: ComposedStack) -> None:
    execution, token = run_squares(stack), stack.token
    stack.compose("down", "--timeout", "20")
    stack.start()
    stack.start()
    assert stack.read_token() == token
    assert read_total(stack, execution) == SUM


@pytest.mark.parametrize("service", ["worker", "nats", "postgres", "planner", "s3"])
def test_a_run_survives_the_death_of(stack: ComposedStack, service: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("killing a container's first process needs root")
    before = [
        containers.inspect_container(name)["RestartCount"] for name in stack.containers(service)
    ]
    with ThreadPoolExecutor(1) as running:
        done = running.submit(run_squares, stack)
        wait_until(lambda: has_begun(stack), timeout_s=60, what="the run has begun")
        stack.kill(service)
        execution = done.result(timeout=containers.COMMAND_S)
    assert read_total(stack, execution) == SUM
    after = [
        containers.inspect_container(name)["RestartCount"] for name in stack.containers(service)
    ]
    assert after != before
    stack.start()


def has_begun(stack: ComposedStack) -> bool:
    try:
        return "running" in stack.noetl("ls").lower()
    except AssertionError:
        return False


def test_workers_are_added_and_taken_away_while_a_run_goes_on(stack: ComposedStack) -> None:
    with ThreadPoolExecutor(1) as running:
        done = running.submit(run_squares, stack)
        wait_until(lambda: has_begun(stack), timeout_s=60, what="the run has begun")
        scale_workers(stack, 5)
        assert len(stack.containers("worker")) == 5
        scale_workers(stack, 2)
        assert len(stack.containers("worker")) == 2
        execution = done.result(timeout=containers.COMMAND_S)
    assert read_total(stack, execution) == SUM
    scale_workers(stack, 1)


def scale_workers(stack: ComposedStack, count: int) -> None:
    stack.compose("up", "-d", "--no-build", "--no-recreate", "--wait", "--scale", f"worker={count}")


def test_every_wall_around_a_task_stands_in_a_workers_container(stack: ComposedStack) -> None:
    # As the worker confines a task: to a folder of its own below one that holds the others.
    bounds = '{"write": ["/tmp/walls/own"]}'
    probe = f"python -I -m noetl_worker.sandbox.confinement '{bounds}' --describe"
    script = f"mkdir -p /tmp/walls/own && cd /tmp/walls/own && {probe}"
    assert msgspec.json.decode(stack.compose("exec", "-T", "worker", "sh", "-c", script)) == {}


@pytest.mark.parametrize("service", containers.SERVICES)
def test_a_container_can_change_nothing_but_its_scratch(stack: ComposedStack, service: str) -> None:
    (name, *_) = stack.containers(service)
    host = containers.inspect_container(name)["HostConfig"]
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] > 0
    assert host["PidsLimit"] > 0
    script = "touch /opt/noetl/x 2> /dev/null && exit 1; touch /tmp/x && id -u"
    assert stack.compose("exec", "-T", service, "sh", "-c", script).strip() == "10001"


def test_the_admin_rebuilds_read_models_as_the_projector(stack: ComposedStack) -> None:
    if obstacle := containers.find_obstacle(images=("noetl-cli",)):
        pytest.skip(f"{obstacle} IMAGES=cli")
    execution = run_squares(stack)
    told = stack.compose("run", "--rm", "-T", "admin", "projection", "rebuild", execution)
    assert re.search(r"1 of tenant default.* rebuilt, 0 of them had other rows", told), told
    whole = stack.compose("run", "--rm", "-T", "admin", "projection", "rebuild", "--all")
    assert re.search(r"[1-9]\d* of tenant default.* rebuilt", whole), whole
    assert read_total(stack, execution) == SUM


def test_the_doctor_of_this_machine_looks_at_the_composed_stack(stack: ComposedStack) -> None:
    told = msgspec.json.decode(stack.noetl("doctor", "--json"))
    found = {check["name"]: check for check in told["checks"]}
    assert told["ok"] is True, told
    assert {"planner", "outbox", "pool default", "postgres fsync"} <= found.keys()
    assert [name for name in found if name.startswith("projector-")]
    # Tasks have run there by now, and every wall stood around them.
    workers = [check for name, check in found.items() if name.startswith("worker ")]
    assert workers
    assert {check["verdict"] for check in workers} == {"ok"}


def test_each_container_holds_its_own_passwords_alone(stack: ComposedStack) -> None:
    seen: dict[str, set[str]] = {}
    for service in containers.SERVICES:
        text = stack.compose("exec", "-T", service, "cat", "/run/noetl/environment")
        seen[service] = set(re.findall(r"://[a-z_]+:([0-9a-f]{48})@", text))
    assert all(seen.values())
    every = [password for passwords in seen.values() for password in passwords]
    assert len(every) == len(set(every))
    worker = stack.compose("exec", "-T", "worker", "cat", "/run/noetl/environment")
    assert "postgresql://" not in worker


def test_a_worker_does_not_reach_the_ledger(stack: ComposedStack) -> None:
    attempt = "import socket; socket.create_connection(('postgres', 5432), timeout=5)"
    with pytest.raises(AssertionError, match=r"gaierror|timed out|Network is unreachable"):
        stack.compose("exec", "-T", "worker", "python", "-c", attempt)
