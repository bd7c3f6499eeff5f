import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such policy")

SHOWN = (
    "import os, subprocess, sys; from noetl_chassis import scheduling; {before}"
    "scheduling.let_others_finish(); "
    "subprocess.run([sys.executable, '-c', 'import os; print(os.sched_getscheduler(0))'])"
)


def policy_of_a_child(*, before: str = "") -> int:
    command = [sys.executable, "-c", SHOWN.format(before=before)]
    return int(subprocess.run(command, check=True, capture_output=True).stdout)  # noqa: S603 - our own interpreter


def test_a_process_and_its_children_let_others_finish() -> None:
    assert policy_of_a_child() == os.SCHED_BATCH


def test_a_policy_that_somebody_chose_stays() -> None:
    chosen = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); "
    assert policy_of_a_child(before=chosen) == os.SCHED_IDLE
