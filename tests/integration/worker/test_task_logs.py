"""What tasks write while they run: every line, in order, also of tries that are ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.calls import call_of
from tests.support.polling import eventually
from tests.support.task_logs import chunks_of, lines_of
from tests.support.working import (
    EXECUTION,
    ORGANIZATION,
    TENANT,
    Bench,
    bench,
    command_of,
)

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.log_chunks import LOGS, LogChunk, LogLine
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, Fact
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_worker.task_logs import task_log


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(python_processes_max=2, shell_allowed=True) as found:
        yield found


def python(code: str, *, timeout_s: float = 60, **more: Any) -> Command:
    tool = {"kind": "python", "code": code, "timeout": timeout_s}
    return command_of(f"\n  - {{step: s, tool: {codec.encode_text(tool)}}}\n", **more)


async def chunks(worker: Bench) -> list[LogChunk]:
    return await chunks_of(
        worker.payloads, EXECUTION, tenant_id=TENANT, organization_id=ORGANIZATION
    )


async def lines(worker: Bench) -> list[LogLine]:
    return lines_of(await chunks(worker))


async def texts(worker: Bench) -> list[str]:
    return [line.text for line in await lines(worker)]


def ended(facts: list[Fact]) -> CommandCompleted | CommandFailed:
    (end,) = [fact for fact in facts if isinstance(fact, CommandCompleted | CommandFailed)]
    return end


async def test_lines_come_in_order_with_their_streams_and_levels(worker: Bench) -> None:
    code = (
        "print('one')\n"
        "print('two', file=sys.stderr)\n"
        "logging.getLogger('shop').warning('three %s', 3)\n"
        "logging.info('four')\nlogging.debug('not shown')\n"
        "print('fi', end='', flush=True); print('ve')\n"
        "try:\n  1 / 0\nexcept ZeroDivisionError:\n  logging.exception('six')\n"
        "print('seven without an end', end='')"
    )
    facts = await worker.run(python(code))
    assert isinstance(ended(facts), CommandCompleted)
    found = await lines(worker)
    shown = [(line.stream, line.level, line.text) for line in found]
    assert shown[:6] == [
        ("stdout", "", "one"),
        ("stderr", "", "two"),
        ("logging", "warning", "shop: three 3"),
        ("logging", "info", "four"),
        ("stdout", "", "five"),
        ("logging", "error", "six"),
    ]
    assert shown[-2] == ("logging", "error", "ZeroDivisionError: division by zero")
    assert shown[-1] == ("stdout", "", "seven without an end")
    assert [line.at_us for line in found] == sorted(line.at_us for line in found)


async def test_a_log_says_whose_it_is_and_its_chunks_follow_each_other(worker: Bench) -> None:
    command = python("for i in range(20_000): print('line', i, 'x' * 40)", attempt=3)
    await worker.run(command)
    found = await chunks(worker)
    assert len(found) > 3
    assert {
        (item.command_id, item.attempt, item.step, item.execution_id, item.worker_id)
        for item in found
    } == {(command.command_id, 3, "s", EXECUTION, "worker-1")}
    assert [item.number for item in found] == list(range(1, len(found) + 1))
    assert found[0].previous_sha256 == ""
    assert [item.previous_sha256 for item in found[1:]] == [
        codec.digest_hex(codec.encode_json(item)) for item in found[:-1]
    ]
    firsts = [item.first for item in found]
    counts = [len(item.lines) for item in found]
    assert firsts == [1 + sum(counts[:at]) for at in range(len(found))]
    assert [line.text.split()[1] for line in lines_of(found)] == [str(i) for i in range(20_000)]
    (source,) = found[0].sources
    assert (source.task, source.unit, source.task_attempt) == ("s_task", "step", 1)


@pytest.mark.parametrize(
    "tool",
    [
        {"kind": "python", "code": "for i in range(100_000): print('line', i, 'x' * 60)"},
        {"kind": "shell", "cmds": "seq -f 'line %.0f and more of it' 0 99999"},
    ],
    ids=["python", "shell"],
)
async def test_of_a_hundred_thousand_lines_none_is_lost(
    worker: Bench, tool: dict[str, Any]
) -> None:
    await worker.run(command_of(f"\n  - {{step: s, tool: {codec.encode_text(tool)}}}\n"))
    assert [text.split()[1] for text in await texts(worker)] == [str(i) for i in range(100_000)]


async def test_other_programs_of_a_task_write_into_its_log(worker: Bench) -> None:
    code = (
        "import subprocess\n"
        "print('before')\n"
        "subprocess.run(['/bin/sh', '-c', 'echo out; echo err >&2'], check=True)\n"
        "os.write(1, b'raw\\n')\n"
        "print('after')"
    )
    await worker.run(python(code))
    found = await lines(worker)
    out = [line.text for line in found if line.stream == "stdout"]
    assert out == ["before", "out", "raw", "after"]
    assert [line.text for line in found if line.stream == "stderr"] == ["err"]


async def test_each_call_of_a_process_has_a_log_of_its_own(worker: Bench) -> None:
    for number in range(3):
        await worker.run(python(f"print('call {number}')\nlogging.info('log {number}')"))
    found = await chunks(worker)
    assert [[line.text for line in item.lines] for item in found] == [
        [f"call {number}", f"log {number}"] for number in range(3)
    ]
    assert len({item.command_id for item in found}) == 3


async def test_lines_are_there_while_the_task_goes_on_and_after_its_time_is_up(
    worker: Bench,
) -> None:
    code = "print('begun')\nprint('half', end='', flush=True)\nimport time\ntime.sleep(600)"
    running = asyncio.ensure_future(worker.run(python(code, timeout_s=8)))
    await eventually(lambda: texts(worker), timeout_s=60)
    assert not running.done()
    end = ended(await running)
    assert isinstance(end, CommandFailed)
    assert end.error.kind == "timeout"
    assert await texts(worker) == ["begun", "half"]


async def test_a_process_that_is_killed_leaves_what_it_wrote(worker: Bench) -> None:
    code = "print('last words')\nos.kill(os.getpid(), signal.SIGKILL)"
    end = ended(await worker.run(python("import signal\n" + code)))
    assert isinstance(end, CommandFailed)
    assert await texts(worker) == ["last words"]


async def test_what_was_printed_before_an_error_is_there(worker: Bench) -> None:
    end = ended(await worker.run(python("print('so far')\nraise ValueError('no')")))
    assert isinstance(end, CommandFailed)
    assert await texts(worker) == ["so far"]


async def test_each_try_of_a_task_is_told_apart(worker: Bench) -> None:
    step = """
  - step: s
    tool:
      kind: python
      input: {n: "{{ _attempt }}"}
      code: |
        print('try', n)
        if int(n) < 3:
            raise ConnectionError('again')
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' }}"
              then: {do: retry, attempts: 3, delay: 0.01}
            - else: {then: {do: continue}}
"""
    await worker.run(command_of(step))
    found = [
        (chunk.sources[line.source].task_attempt, line.text)
        for chunk in await chunks(worker)
        for line in chunk.lines
    ]
    assert found == [(1, "try 1"), (2, "try 2"), (3, "try 3")]


async def test_secrets_are_masked_before_anything_is_stored(worker: Bench) -> None:
    worker.mask.learn_secrets({"token": "canary-canary", "key": "line one of it\nshort2"})
    code = (
        "print('canary', end='', flush=True); print('-canary')\n"
        "logging.error('canary-canary')\n"
        "print('line one of it\\nshort2')\n"
        "os.write(2, b'canary-'); os.write(2, b'canary\\n')"
    )
    await worker.run(python(code))
    found = await chunks(worker)
    assert sorted(await texts(worker)) == ["***"] * 5
    assert "canary" not in codec.encode_text(found)


async def test_a_log_is_bounded_and_the_task_goes_on(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_log, "TRY_BYTES_MAX", 100_000)
    end = ended(await worker.run(python("for i in range(50_000): print('line', i)\nreturn 7")))
    assert isinstance(end, CommandCompleted)
    assert await worker.value(end.result) == 7
    found = await texts(worker)
    assert sum(len(text) for text in found) < 110_000
    assert "cut here: it holds 100,000 bytes at most" in found[-2]
    assert "more bytes are left out" in found[-1]


async def test_scripts_of_the_shell_write_into_the_log_as_they_run(worker: Bench) -> None:
    cmds = ["echo one; echo two >&2", "printf three; sleep 600"]
    tool = {"kind": "shell", "cmds": cmds, "timeout": 8}
    running = asyncio.ensure_future(
        worker.run(command_of(f"\n  - {{step: s, tool: {codec.encode_text(tool)}}}\n"))
    )
    await eventually(lambda: texts(worker), timeout_s=60)
    assert not running.done()
    assert isinstance(ended(await running), CommandFailed)
    found = [(line.stream, line.text) for line in await lines(worker)]
    assert sorted(found[:2]) == [("stderr", "two"), ("stdout", "one")]
    assert found[2] == ("stdout", "three")


async def test_a_task_that_writes_without_end_slows_no_other_one(worker: Bench) -> None:
    """The noisy task is held back by its pipe; many others end while it still writes."""
    noisy = asyncio.ensure_future(
        worker.run(python("while True: print('noise ' * 20)", timeout_s=20))
    )
    await eventually(lambda: texts(worker), timeout_s=60)
    done = 0
    while not noisy.done() and done < 20:
        outcome = await worker.tools.run(call_of("python", {"code": f"return {done}"}))
        assert outcome.data == done
        done += 1
    assert done == 20
    assert not noisy.done()
    noisy.cancel()
    await asyncio.gather(noisy, return_exceptions=True)


class OnceFull(MemoryPayloads):
    """A store that refuses the first chunk of a log for good."""

    has_refused = False

    async def put_named(self, name: str, data: bytes, **owner: Any) -> bytes | None:
        if name.startswith(LOGS) and not self.has_refused:
            self.has_refused = True
            raise StorageMisconfigured("the quota is used up")
        return await super().put_named(name, data, **owner)


async def test_lines_that_could_not_be_stored_are_told_and_fail_no_task() -> None:
    async with bench(store=OnceFull()) as worker:
        facts = await worker.run(python("for i in range(20_000): print('line', i, 'x' * 40)"))
        assert isinstance(ended(facts), CommandCompleted)
        found = await chunks(worker)
    notice, *rest = lines_of(found)
    assert (notice.stream, notice.level) == ("notice", "error")
    missing = int(rest[0].text.split()[1])
    assert missing > 0
    assert notice.text == f"{missing:,} lines are missing here: the quota is used up"
    assert [line.text.split()[1] for line in rest] == [str(i) for i in range(missing, 20_000)]


async def test_a_task_without_output_stores_nothing(worker: Bench) -> None:
    await worker.run(python("return 1"))
    assert await chunks(worker) == []
