import subprocess
import sys

import pytest

from noetl_cli.stack.processes import coarse_timers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such timers")


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - programs of this test's own
        coarse_timers.with_coarse_timers(argv), check=False, capture_output=True, text=True
    )


def test_a_server_gets_timers_that_may_be_a_millisecond_late() -> None:
    assert run("/bin/cat", "/proc/self/timerslack_ns").stdout == "1000000\n"


def test_a_server_becomes_its_own_process() -> None:
    assert run("/bin/cat", "/proc/self/cmdline").stdout == "/bin/cat\0/proc/self/cmdline\0"


def test_a_server_that_cannot_be_run_says_why_in_its_log() -> None:
    done = run("/nowhere/nats-server")
    assert done.returncode != 0
    assert done.stderr == "/nowhere/nats-server cannot be run: No such file or directory\n"
