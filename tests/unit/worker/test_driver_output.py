"""What the thread of a Spark task writes goes to its log, and nothing of other threads does."""

# ruff: noqa: T201 - what is printed is what is tested

import asyncio
import logging
import sys
import threading

import pytest

from noetl_worker.spark.driver_output import DriverOutput, capture_output


class Lines:
    """Takes what a log takes."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, str]] = []

    def write_output(self, stream: str, data: bytes) -> None:
        self.taken.append((stream, "", data.decode()))

    def add_line(self, stream: str, text: str, *, level: str = "") -> None:
        self.taken.append((stream, level, text))

    async def wait_for_room(self) -> None:
        return

    def finish_lines(self) -> None:
        self.taken.append(("finish", "", ""))


async def test_each_thread_writes_to_its_own_log_and_others_to_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    loop, both = asyncio.get_running_loop(), threading.Barrier(3)
    logs = [Lines(), Lines()]

    def work(number: int) -> None:
        with capture_output(DriverOutput(logs[number], loop)):
            both.wait()
            print("out", number)
            print("err", number, file=sys.stderr)
            logging.getLogger("shop").warning("logged %s", number)
            print("half", end="")
            both.wait()

    def stranger() -> None:
        both.wait()
        print("of nobody")
        both.wait()

    before = sys.stdout, sys.stderr
    strange = asyncio.to_thread(stranger)
    await asyncio.gather(strange, *(asyncio.to_thread(work, number) for number in range(2)))
    assert (sys.stdout, sys.stderr) == before
    for number, log in enumerate(logs):
        assert log.taken == [
            ("stdout", "", f"out {number}\n"),
            ("stderr", "", f"err {number}\n"),
            ("logging", "warning", f"shop: logged {number}"),
            ("stdout", "", "half"),
        ]
    assert capsys.readouterr().out == "of nobody\n"


async def test_much_output_waits_for_the_log() -> None:
    class Slow(Lines):
        waits = 0

        async def wait_for_room(self) -> None:
            self.waits += 1

    log = Slow()
    output = DriverOutput(log, asyncio.get_running_loop())

    def work() -> None:
        with capture_output(output):
            for number in range(10_000):
                print("line", number, "x" * 50)

    await asyncio.to_thread(work)
    assert len(log.taken) == 10_000
    assert log.waits > 5


async def test_what_is_written_behind_the_end_of_a_log_is_dropped() -> None:
    log = Lines()
    output = DriverOutput(log, asyncio.get_running_loop())
    output.close()

    def work() -> None:
        with capture_output(output):
            print("late")
            logging.getLogger("shop").warning("late")

    await asyncio.to_thread(work)
    assert log.taken == [("finish", "", "")]


async def test_a_quiet_log_of_the_worker_hides_no_warning_of_a_task() -> None:
    loop, log, root = asyncio.get_running_loop(), Lines(), logging.getLogger()
    other = logging.StreamHandler()
    before = root.level
    root.addHandler(other)
    root.setLevel(logging.CRITICAL)

    def work() -> None:
        with capture_output(DriverOutput(log, loop)):
            assert other.level == logging.CRITICAL
            logging.getLogger("shop").warning("careful")

    try:
        await asyncio.to_thread(work)
        assert (root.level, other.level) == (logging.CRITICAL, logging.NOTSET)
    finally:
        root.removeHandler(other)
        root.setLevel(before)
    assert log.taken == [("logging", "warning", "shop: careful")]
