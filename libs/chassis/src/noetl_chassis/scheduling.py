"""How a process takes its turns on a processor that it shares with others."""

import contextlib
import os
import sys


def let_others_finish() -> None:
    """Do not take the processor from whoever has it when this process wakes; children inherit it.

    A step wakes a dozen threads of five processes one after another, each on the processor of who
    woke it. With Linux' policy for batches (sched(7), SCHED_BATCH) the one that writes a message
    goes on until it waits itself, and the other processor takes the one that is woken.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        # Whoever runs it has chosen.
        return
    with contextlib.suppress(OSError):  # a sandbox may forbid it, and all works without
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
