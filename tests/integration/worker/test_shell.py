"""The shell tool: scripts in order, whole process groups, nothing of the worker's."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.attempting import files_of
from tests.support.calls import call_of
from tests.support.files import walk_folder
from tests.support.polling import eventually
from tests.support.processes import count_running, make_nap
from tests.support.working import Bench, bench, command_of

from noetl_contracts.ids import TenantId
from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.tools.calls.call import Outcome

LIMITED = 256 * 1024**2


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(
        shell_allowed=True, shell_output_bytes_max=2 * 1024 * 1024, work_directory=str(tmp_path)
    ) as found:
        yield found


async def run(worker: Bench, cmds: Any = None, *, timeout_s: float = 20, **fields: Any) -> Outcome:
    given = fields if cmds is None else {"cmds": cmds, **fields}
    return await worker.tools.run(call_of("shell", given, timeout_s=timeout_s))


async def test_a_worker_runs_no_scripts_unless_it_is_told_to() -> None:
    async with bench() as closed:
        found = await run(closed, "echo hi")
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("config", False)
    assert "NOETL_WORKER_SHELL_ALLOWED=true" in found.error.message


async def test_a_script_gives_its_output_and_code(worker: Bench) -> None:
    found = await run(worker, "printf ' hi %s \n' \"$WHO\"; echo no >&2", env={"WHO": "ann"})
    assert found.error is None, found.error
    data = dict(found.data)
    assert data.pop("duration_ms") > 0
    (result,) = data.pop("results")
    assert data == {
        "stdout": " hi ann \n",
        "stderr": "no\n",
        "returncode": 0,
        "exit_code": 0,
        "text": "hi ann",
    }
    assert (result["stdout"], result["returncode"]) == (" hi ann \n", 0)


async def test_scripts_run_in_order_in_one_directory(worker: Bench) -> None:
    found = await run(worker, ["echo one > f", "cat f; echo two"])
    assert found.data["stdout"] == "one\ntwo\n"
    assert [result["stdout"] for result in found.data["results"]] == ["", "one\ntwo\n"]


async def test_the_first_script_that_fails_ends_the_task(worker: Bench) -> None:
    found = await run(worker, ["echo one", "echo bad >&2; exit 3", "echo never"])
    assert found.error is not None
    assert (found.error.kind, found.error.code, found.error.retryable) == ("shell", "3", False)
    assert found.error.message == "script 2 of 3 ended with code 3: bad"
    assert found.error.details == {"returncode": 3, "script": 2, "stderr": ["bad"]}
    assert (found.data["returncode"], found.data["stdout"]) == (3, "one\n")
    assert found.data["stderr"] == "bad\n"
    assert len(found.data["results"]) == 2


async def test_a_signal_is_told_from_a_code(worker: Bench) -> None:
    found = await run(worker, "kill -9 $$")
    assert found.error is not None
    assert found.error.message == "script 1 of 1 was ended by signal 9"
    assert found.data["exit_code"] == -9


async def test_nothing_but_four_variables_is_inherited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOETL_WORKER_SECRET_KEY", "canary-canary-canary")
    monkeypatch.setenv("LANG", "C.UTF-8")
    async with bench(shell_allowed=True) as worker:
        found = await run(worker, "env", env={"MINE": "yes", "GONE": None})
    names = {line.partition("=")[0] for line in found.data["stdout"].splitlines()}
    assert names - {"PWD", "SHLVL", "_"} == {"PATH", "HOME", "LANG", "TMPDIR", "MINE"}


async def test_no_locale_is_made_up_where_none_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    async with bench(shell_allowed=True) as worker:
        found = await run(worker, "env")
    names = {line.partition("=")[0] for line in found.data["stdout"].splitlines()}
    assert names - {"PWD", "SHLVL", "_"} == {"PATH", "HOME", "TMPDIR"}


async def test_the_environment_of_the_worker_cannot_be_read(worker: Bench) -> None:
    found = await run(worker, f"cat /proc/{os.getpid()}/environ /proc/1/environ")
    assert found.error is not None
    assert found.data["stdout"] == ""
    assert "Permission denied" in found.data["stderr"]


@pytest.mark.parametrize("stdin", ["a\nb\n", {"a": 1}])
async def test_standard_input_is_what_the_task_says(worker: Bench, stdin: Any) -> None:
    found = await run(worker, "cat", stdin=stdin)
    assert found.data["stdout"] == (stdin if isinstance(stdin, str) else '{"a":1}')


async def test_without_stdin_a_script_reads_nothing(worker: Bench) -> None:
    assert (await run(worker, "cat; echo end")).data["stdout"] == "end\n"


async def test_another_shell_can_be_named(worker: Bench) -> None:
    found = await run(worker, "echo ${BASH_VERSION:+bash}", shell="/bin/bash")  # noqa: S604 - a field of the task
    assert found.data["text"] == "bash"
    missing = await run(worker, "true", shell="/bin/no-such-shell")  # noqa: S604 - as above
    assert missing.error is not None
    assert "/bin/no-such-shell: No such file" in missing.error.message


async def test_a_named_directory_stays_for_later_tasks(worker: Bench) -> None:
    await run(worker, "echo kept > note", cwd="jobs/a")
    assert (await run(worker, "cat note", cwd="jobs/a")).data["text"] == "kept"
    other = call_of("shell", {"cmds": "ls", "cwd": "jobs/a"}, tenant=TenantId("other"))
    assert (await worker.tools.run(other)).data["stdout"] == ""


async def test_private_directories_go_away_and_files_of_the_execution_stay(worker: Bench) -> None:
    found = await run(
        worker, 'pwd; echo "$HOME"; echo "$TMPDIR"; echo kept > note; echo x > "$HOME/x"'
    )
    directories = [Path(line) for line in found.data["stdout"].split()]
    assert len(directories) == 3
    assert all(directory.is_absolute() for directory in directories)
    assert not any(directory.exists() for directory in directories)
    assert (await run(worker, "cat note")).data["text"] == "kept"
    assert (await run(worker, "cat note", cwd=".")).data["text"] == "kept"


async def test_a_directory_of_the_organization_stays_as_it_is(
    worker: Bench, tmp_path: Path
) -> None:
    cwd = "noetl://files/jobs"
    await run(worker, "echo kept > note; exit 1", cwd=cwd)
    assert (files_of(tmp_path) / "jobs/note").read_text() == "kept\n"
    assert (await run(worker, "cat note", cwd=cwd)).data["text"] == "kept"


@pytest.mark.parametrize(
    "cwd", ["../..", "/etc", "a/../../../..", "noetl://files/x/out", "a\0b", 5, "", ".noetl"]
)
async def test_directories_outside_are_refused(worker: Bench, cwd: Any) -> None:
    await run(worker, "ln -s / out", cwd="noetl://files/x")
    found = await run(worker, "pwd", cwd=cwd)
    assert found.error is not None
    assert found.error.kind in {"config", "validation"}


@pytest.mark.parametrize(
    "fields",
    [
        {"cmds": []},
        {"cmds": None},
        {"cmds": ["true", 5]},
        {"cmds": "true", "env": ["A=1"]},
        {"cmds": "true", "env": {"A=B": "1"}},
        {"cmds": "true", "env": {"A": "x\0y"}},
        {"cmds": "true", "shell": "sh"},
    ],
)
async def test_fields_that_make_no_sense_are_named(worker: Bench, fields: dict[str, Any]) -> None:
    found = await run(worker, **fields)
    assert found.error is not None
    assert found.error.kind == "validation"


async def test_a_timeout_ends_the_script_and_its_children(worker: Bench) -> None:
    nap = make_nap()
    script = f"sleep {nap} & echo $!; sh -c 'sleep {nap}' & echo $!; wait"
    found = await run(worker, script, timeout_s=3)
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("timeout", True)
    assert len(found.data["stdout"].split()) == 2
    assert count_running(nap) == 0


async def test_a_script_that_ignores_the_request_to_end_is_killed(worker: Bench) -> None:
    script = f"trap '' TERM; echo {make_nap()}; while true; do sleep 1; done"
    found = await run(worker, script, timeout_s=3)
    assert found.error is not None
    assert found.error.kind == "timeout"
    assert found.data["stdout"]

    async def is_gone() -> bool:
        return count_running(script) == 0

    # It is the last resort, and nobody waits for whom it meets.
    await eventually(is_gone)


async def test_a_cancelled_task_leaves_nothing_behind(worker: Bench, tmp_path: Path) -> None:
    cwd = "noetl://files/c"
    ready = files_of(tmp_path) / "c/pids"
    nap = make_nap()
    script = f"sleep {nap} & echo $! $$ > pids.tmp; mv pids.tmp pids; wait"
    task = asyncio.ensure_future(run(worker, script, cwd=cwd))

    async def is_started() -> bool:
        return ready.is_file()

    await eventually(is_started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ready.read_text().split()) == 2
    assert not list(worker.tools.shell._directory.iterdir())
    assert not list(worker.tools.lender._workspaces.root.iterdir())
    assert count_running(nap) + count_running(script) == 0


async def test_what_a_script_leaves_running_is_ended_with_it(worker: Bench) -> None:
    nap = make_nap()
    found = await run(worker, f"sleep {nap} & echo $!")
    assert found.error is None
    assert found.data["stdout"]
    assert count_running(nap) == 0


async def test_a_process_that_left_the_session_is_ended_with_it_too(worker: Bench) -> None:
    nap = make_nap()
    script = f"setsid -f sh -c 'echo $$ > pid; exec sleep {nap}'; until test -s pid; do :; done"
    found = await run(worker, f"{script}; cat pid")
    assert found.error is None
    assert found.data["stdout"]
    assert count_running(nap) == 0


async def test_output_beyond_the_limit_is_an_error_with_what_there_was(worker: Bench) -> None:
    found = await run(worker, "yes")
    assert found.error is not None
    assert found.error.kind == "payload_too_large"
    assert len(found.data["stdout"]) == 2 * 1024 * 1024


async def test_long_output_is_kept_by_reference(worker: Bench) -> None:
    step = """
  - step: s
    tool: {kind: shell, commands: ["head -c 1500000 /dev/zero | tr '\\\\0' x"]}
"""
    (fact,) = [
        item for item in await worker.run(command_of(step)) if isinstance(item, CommandCompleted)
    ]
    assert fact.result.reference is not None
    assert (await worker.value(fact.result))["stdout"] == "x" * 1_500_000


async def test_memory_and_files_have_limits(tmp_path: Path) -> None:
    async with bench(
        shell_allowed=True, shell_memory_bytes=LIMITED, work_directory=str(tmp_path)
    ) as worker:
        found = await run(worker, "ulimit -v; ulimit -n; ulimit -c")
        assert found.data["stdout"].split() == ["262144", "1024", "0"]


async def test_output_that_is_no_text_is_shown_as_far_as_it_is(worker: Bench) -> None:
    assert (await run(worker, "printf 'a\\377b'")).data["text"] == "a\ufffdb"


async def test_every_spelling_of_the_scripts_is_read(worker: Bench) -> None:
    for key in ("cmds", "commands", "command", "cmd"):
        step = f"""
  - step: s
    tool:
      kind: shell
      {key}: "echo '$'{{{{ workload.n }}}}$N"
      env: {{N: "{{{{ workload.n }}}}"}}
      spec: {{policy: {{rules: [
        {{when: "{{{{ output.shell.returncode == 0 }}}}", then: {{do: continue}}}},
        {{else: {{then: {{do: fail}}}}}}]}}}}
"""
        found = await worker.run(command_of(step, workload={"n": 7}))
        (fact,) = [item for item in found if isinstance(item, CommandCompleted)]
        assert (await worker.value(fact.result))["text"] == "$77"


async def test_a_script_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "greet.sh").write_text("echo from {{ file }}")
    async with bench(shell_allowed=True, script_directory=str(tmp_path)) as worker:
        found = await run(worker, script={"uri": "greet.sh"})
    assert found.data["text"] == "from {{ file }}"


async def test_other_organizations_are_out_of_sight(worker: Bench, tmp_path: Path) -> None:
    await run(worker, "echo secret > f", cwd="noetl://files/mine")
    other = call_of(
        "shell",
        {"cmds": f"find {tmp_path} -type f; ls {tmp_path}/tenant"},
        tenant=TenantId("other"),
    )
    found = await worker.tools.run(other)
    assert found.data["stdout"] == ""
    shown = call_of(
        "shell",
        {"cmds": f"find {tmp_path} -type f; ls {tmp_path}/tenant", "cwd": "noetl://files/own"},
        tenant=TenantId("other"),
    )
    assert (await worker.tools.run(shown)).data["stdout"] == "other\n"


async def test_private_directories_of_others_are_out_of_sight(worker: Bench) -> None:
    waiting = asyncio.ensure_future(run(worker, 'pwd > "$HOME/at"; echo s > s; sleep 30'))
    homes = worker.tools.shell._directory

    async def has_begun() -> bool:
        return any(path.match("*/at") for path in walk_folder(homes))

    await eventually(has_begun)
    places = [homes, worker.tools.lender._workspaces.root, worker.tools.python._directory]
    listing = " ".join(f"{place}/*" for place in places)
    other = call_of(
        "shell", {"cmds": f"echo $HOME $PWD; ls -d {listing}"}, tenant=TenantId("other")
    )
    parts = (await worker.tools.run(other)).data["stdout"].split()
    assert sorted(parts[2:]) == sorted(parts[:2])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
