"""What Spark tells the thread of a task goes to the log of the task."""

import asyncio

from noetl_worker.spark.driver_output import DriverOutput


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


async def test_lines_leave_whole_and_the_rest_when_it_is_flushed() -> None:
    log = Lines()
    output = DriverOutput(log, asyncio.get_running_loop())

    def work() -> None:
        output.write_text("stdout", "one\ntw")
        output.write_text("stdout", "o\nhalf")
        output.add_line("shop: careful", level="warning")
        output.flush_lines()

    await asyncio.to_thread(work)
    assert log.taken == [
        ("stdout", "", "one\n"),
        ("stdout", "", "two\n"),
        ("logging", "warning", "shop: careful"),
        ("stdout", "", "half"),
    ]


async def test_much_output_waits_for_the_log() -> None:
    class Slow(Lines):
        waits = 0

        async def wait_for_room(self) -> None:
            self.waits += 1

    log = Slow()
    output = DriverOutput(log, asyncio.get_running_loop())

    def work() -> None:
        for number in range(10_000):
            output.write_text("stdout", f"line {number} {'x' * 50}\n")

    await asyncio.to_thread(work)
    assert len(log.taken) == 10_000
    assert log.waits > 5


async def test_what_is_written_behind_the_end_of_a_log_is_dropped() -> None:
    log = Lines()
    output = DriverOutput(log, asyncio.get_running_loop())
    output.close()

    def work() -> None:
        output.write_text("stdout", "late\n")
        output.add_line("late", level="warning")

    await asyncio.to_thread(work)
    assert log.taken == [("finish", "", "")]
