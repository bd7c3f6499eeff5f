"""Container tasks on a real Docker: results, files, limits, walls and ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import docker_containers
from tests.support.docker_containers import IMAGE, name_of, shell_of
from tests.support.polling import eventually
from tests.support.task_logs import chunks_of, lines_of
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, bench, command_of

from noetl_contracts import codec
from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.tools.calls.call import Call, Outcome


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(
        **docker_containers.SETTINGS, container_memory_bytes=64 * 1024**2, python_processes_max=1
    ) as found:
        yield found


async def run(worker: Bench, call: Call) -> Outcome:
    """Run a call; nothing of its container is left."""
    outcome = await worker.tools.run(call)
    assert name_of(call) not in await docker_containers.list_names()
    return outcome


async def data_of(worker: Bench, script: str, **fields: Any) -> Any:
    outcome = await run(worker, shell_of(script, **fields))
    assert outcome.error is None, outcome.error
    return outcome.data


async def error_of(worker: Bench, script: str, **fields: Any) -> Any:
    outcome = await run(worker, shell_of(script, **fields))
    assert outcome.error is not None
    return outcome.error


async def test_the_last_line_is_the_result_if_it_is_json(worker: Bench) -> None:
    found = await data_of(worker, """echo begin; echo oops >&2; echo '{"n": 4}'""")
    assert (found["status"], found["exit_code"], found["result"]) == ("succeeded", 0, {"n": 4})
    assert {"begin", "oops"} <= set(found["logs"].splitlines())
    assert found["started_at"]
    assert found["finished_at"]
    assert (await data_of(worker, "echo no json"))["result"] is None


async def test_a_file_for_the_result_wins_over_the_output(worker: Bench) -> None:
    found = await data_of(worker, "echo '[1, 2]' > result.json; echo 7")
    assert found["result"] == [1, 2]
    error = await error_of(worker, "echo no json > result.json")
    assert (error.kind, "result.json is not JSON" in error.message) == ("parse", True)


async def test_files_go_in_and_out(worker: Bench) -> None:
    """Files of the execution come with every task; those of a task are its own."""
    files = [{"path": "in/a.txt", "content": "hello"}, {"path": "/work/b.json", "content": [1]}]
    script = "cat in/a.txt b.json; mkdir out; echo made > out/x.txt; chmod 700 out/x.txt"
    assert (await data_of(worker, script, files=files))["logs"] == "hello[1]"
    script = "cat out/x.txt; test -x out/x.txt; ls; echo more >> out/x.txt"
    assert (await data_of(worker, script))["logs"] == "made\nout\n"
    assert (await data_of(worker, "cat out/x.txt; rm -r out"))["logs"] == "made\nmore\n"
    assert (await data_of(worker, "ls -A"))["logs"] == ""


async def test_files_of_a_container_that_failed_are_not_kept(worker: Bench) -> None:
    await error_of(worker, "echo x > left.txt; exit 1")
    assert (await data_of(worker, "ls -A"))["logs"] == ""


async def test_a_link_is_no_file_to_keep(worker: Bench) -> None:
    error = await error_of(worker, "ln -s /etc/passwd secret.txt")
    assert (error.kind, "'secret.txt' is a link" in error.message) == ("config", True)


async def test_a_script_is_run_by_the_shell(worker: Bench) -> None:
    script = {"source": {"type": "inline", "code": 'echo "$1 of $N"'}}
    call = shell_of("", command=None, args=["one"], script=script, env={"N": 3, "M": None})
    outcome = await run(worker, call)
    assert isinstance(outcome.data, dict), outcome.error
    assert outcome.data["logs"] == "one of 3\n"


async def test_a_code_other_than_0_is_an_error_that_names_it(worker: Bench) -> None:
    outcome = await run(worker, shell_of("echo the disk is red; exit 3"))
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.code) == ("container", "3")
    assert outcome.error.message == "the container ended with code 3: the disk is red"
    assert isinstance(outcome.data, dict)
    assert (outcome.data["status"], outcome.data["exit_code"]) == ("failed", 3)


async def test_too_much_memory_is_told_as_such(worker: Bench) -> None:
    error = await error_of(
        worker,
        "exec tail /dev/zero",
        resources={"limits": {"memory": "16Mi"}},
    )
    assert (error.kind, error.retryable, error.code) == ("container_oom", False, "137")
    assert "limit of 16Mi" in error.message
    assert "resources.limits.memory" in error.message


async def test_a_container_past_its_time_is_stopped(worker: Bench) -> None:
    outcome = await run(worker, shell_of("echo begun; exec sleep 600", timeout_s=2))
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("timeout", True)
    assert "its last line is: begun" in outcome.error.message
    assert outcome.data == {"logs": "begun\n"}


async def test_an_image_that_cannot_be_had_is_named() -> None:
    async with bench(containers="docker", container_images=("*",)) as worker:
        error = await error_of(worker, "true", image="localhost:1/no/such:1")
    assert error.kind == "container_start"
    assert "image localhost:1/no/such:1 cannot be fetched" in error.message


async def test_a_program_that_is_not_there_fails_for_good(worker: Bench) -> None:
    error = await error_of(worker, "", command=["nonesuch"], args=None)
    assert (error.kind, error.retryable) == ("container_start", False)
    assert "nonesuch" in error.message


async def test_a_container_has_no_right_beyond_its_folder(worker: Bench) -> None:
    script = (
        "id -u; grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status; "
        "touch /etc/x /usr/x 2>/dev/null || echo read-only; ls /sys/class/net; "
        "touch /tmp/x x && echo written; ls /var/run/docker.sock 2>/dev/null; "
        "unshare -U true 2>/dev/null || echo none; exit 0"
    )
    found = (await data_of(worker, script))["logs"].split()
    assert found[0] == "10001"
    assert found[found.index("CapEff:") + 1] == found[found.index("CapBnd:") + 1] == "0" * 16
    assert found[found.index("NoNewPrivs:") + 1] == "1"
    assert found[found.index("Seccomp:") + 1] == "2"
    assert found[-4:] == ["read-only", "lo", "written", "none"]


async def test_the_network_is_given_to_tasks_that_may_ask_for_it(worker: Bench) -> None:
    error = await error_of(worker, "true", network=True)
    assert (error.kind, "CONTAINER_NETWORK_BY_TASK" in error.message) == ("config", True)
    async with bench(**docker_containers.SETTINGS, container_network_by_task=True) as open_worker:
        assert "eth0" in (await data_of(open_worker, "ls /sys/class/net", network=True))["logs"]
        assert (await data_of(open_worker, "ls /sys/class/net"))["logs"] == "lo\n"


async def test_a_cancelled_task_takes_its_container_along(worker: Bench) -> None:
    call = shell_of("echo begun; exec sleep 600")
    running = asyncio.ensure_future(worker.tools.run(call))
    await eventually(lambda: _is_there(call))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert name_of(call) not in await docker_containers.list_names()


async def test_a_container_that_somebody_removes_was_taken_away(worker: Bench) -> None:
    call = shell_of("exec sleep 600")
    running = asyncio.ensure_future(worker.tools.run(call))
    await eventually(lambda: _is_there(call))
    await docker_containers.ask_docker("DELETE", f"/containers/{name_of(call)}", force="true")
    outcome = await running
    assert outcome.error is not None
    assert (outcome.error.kind, outcome.error.retryable) == ("container_evicted", True)


async def test_lines_are_stored_while_it_runs_and_secrets_are_masked(worker: Bench) -> None:
    await worker.put_credential("shop", {"token": "s3cr3t-canary-token"}, kind="generic")
    tool = {
        "kind": "container",
        "image": IMAGE,
        "command": ["sh", "-c"],
        "args": ["echo token=$TOKEN; exec sleep 600"],
        "env": {"TOKEN": "{{ keychain.shop.token }}"},
        "timeout": 15,
    }
    command = command_of(
        f"\n  - {{step: s, tool: {codec.encode_text(tool)}}}\n",
        keychain=[{"name": "shop", "kind": "credential", "credential": "shop"}],
    )
    running = asyncio.ensure_future(worker.run(command))

    async def has_line() -> bool:
        return "token=***" in await _texts(worker)

    await eventually(has_line, timeout_s=12)
    facts = await running
    assert "s3cr3t-canary-token" not in codec.encode_text(facts)
    assert not any(isinstance(fact, CommandCompleted) for fact in facts)


async def _is_there(call: Call) -> bool:
    return name_of(call) in await docker_containers.list_names()


async def _texts(worker: Bench) -> list[str]:
    chunks = await chunks_of(
        worker.payloads, EXECUTION, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    return [line.text for line in lines_of(chunks)]
