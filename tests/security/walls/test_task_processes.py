"""A task acts on no other process, and leaves none behind."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.calls import call_of
from tests.support.polling import eventually
from tests.support.processes import count_running, make_nap
from tests.support.working import Bench

from noetl_worker.tools.calls.call import Outcome

CALLS = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"


async def run(worker: Bench, code: str, **about: Any) -> Outcome:
    return await worker.tools.run(call_of("python", {"code": code}, **about))


ACTS = {
    "kill": "os.kill(WORKER, 0)",
    "kill-all": "os.kill(-1, 0)\nassert False, 'only itself'",
    "prlimit": "import resource\nresource.prlimit(WORKER, resource.RLIMIT_CORE, (0, 0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, WORKER, 19)",
    "priority-of-user": "os.setpriority(os.PRIO_USER, 0, 19)",
    "affinity": "os.sched_setaffinity(WORKER, {0})",
    "scheduler": "os.sched_setscheduler(WORKER, os.SCHED_IDLE, os.sched_param(0))",
    "environ": "open('/proc/WORKER/environ').read()",
    "command": "open('/proc/WORKER/cmdline').read()",
    "descriptors": "os.listdir('/proc/WORKER/fd')",
    "memory": "open('/proc/WORKER/mem', 'rb').read(1)",
    "maps": "open('/proc/WORKER/maps').read(1)",
    "memory-of-first": "open('/proc/1/mem', 'rb').read(1)",
    "descriptors-of-first": "fd = os.listdir('/proc/1/fd')[0]\nos.readlink(f'/proc/1/fd/{fd}')",
    "ptrace": CALLS + "assert libc.ptrace(16, WORKER, 0, 0) == 0, 'refused'",
    "ptrace-first": CALLS + "assert libc.ptrace(16, 1, 0, 0) == 0, 'refused'",
    "read-memory": CALLS + "assert libc.process_vm_readv(WORKER, 0, 0, 0, 0, 0) == 0, 'refused'",
    "take-descriptor": "fd = os.pidfd_open(WORKER)\n"
    + CALLS
    + "assert libc.syscall(438, fd, 0, 0) >= 0, 'refused'",
    "keys": CALLS + "assert libc.syscall(248, b'user', b'a', b'b', 1, -3) >= 0, 'refused'",
    "read-keys": CALLS + "assert libc.syscall(250, 0, -3, 0) >= 0, 'refused'",
    "shared-memory": CALLS + "assert libc.shmget(0, 4096, 0o1600) >= 0, 'refused'",
    "message-queue": CALLS + "assert libc.msgget(0, 0o1600) >= 0, 'refused'",
    "bpf": CALLS + "assert libc.syscall(321, 0, 0, 0) >= 0, 'refused'",
    "mount": CALLS + "assert libc.mount(b'none', b'/proc', b'tmpfs', 0, None) == 0, 'refused'",
    "namespace": CALLS + "assert libc.unshare(0x10000000) == 0, 'refused'",
    "capabilities": (
        "status = open('/proc/self/status').read()\n"
        "assert int(status.partition('CapEff:')[2].split()[0], 16), 'none'"
    ),
    "core-dump": "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
}


@pytest.mark.skipif(sys.platform != "linux", reason="these are calls of Linux")
@pytest.mark.parametrize("attack", ACTS)
async def test_other_processes_are_out_of_reach(worker: Bench, attack: str) -> None:
    found = await run(worker, ACTS[attack].replace("WORKER", str(os.getpid())))
    assert found.error is not None, found.data


async def test_the_commands_of_others_are_not_listed(worker: Bench) -> None:
    code = (
        "found = b''\nfor name in os.listdir('/proc'):\n  try:\n"
        "    found += open(f'/proc/{name}/cmdline', 'rb').read() if name.isdigit() else b''\n"
        "  except OSError:\n    pass\nreturn found.decode()"
    )
    found = await run(worker, code)
    assert found.error is not None or "pytest" not in found.data


async def test_no_descriptor_of_the_worker_is_inherited(worker: Bench, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 - the function has no name for it
        code = (
            "found = []\nfor fd in range(256):\n  try:\n"
            "    found.append(os.readlink(f'/proc/self/fd/{fd}'))\n"
            "  except OSError:\n    pass\nreturn found"
        )
        found = await run(worker, code)
    assert found.error is None, found.error
    kinds = {link.partition(":")[0] for link in found.data} - {"/dev/null"}
    assert kinds == {"pipe"}


DETACH = {
    "session": "import subprocess\nsubprocess.Popen(['/bin/sleep', NAP], start_new_session=True)\n",
    "twice": (
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
        "    os.execv('/bin/sleep', ['sleep', NAP])\n  os._exit(0)\nos.wait()\n"
    ),
    "by-shell": "os.system(f'setsid -f sleep {NAP} >/dev/null 2>&1')\n",
    "hidden": (
        CALLS
        + "libc.prctl(36, 0, 0, 0, 0)\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
        "    os.execv('/bin/sleep', ['sleep', NAP])\n  os._exit(0)\nos.wait()\n"
        "os.waitpid = lambda *_: (_ for _ in ()).throw(ChildProcessError())\n"
    ),
}
STARTED = "time.sleep(0.3)\n"


@pytest.mark.parametrize("end", ["return 'done'", "while True: pass", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("way", DETACH)
async def test_a_detached_child_ends_with_the_call(worker: Bench, way: str, end: str) -> None:
    nap = make_nap()
    code = DETACH[way].replace("NAP", repr(nap)) + STARTED + end
    if way == "by-shell":
        code = f"NAP = {nap!r}\n" + DETACH[way] + STARTED + end
    found = await run(worker, code, timeout_s=2 if end == "while True: pass" else 60)
    assert (found.data == "done") is (end == "return 'done'"), found.error

    async def is_gone() -> bool:
        return count_running(nap) == 0

    await eventually(is_gone)
    # The next call finds a process of its own.
    assert (await run(worker, "return 1")).data == 1
