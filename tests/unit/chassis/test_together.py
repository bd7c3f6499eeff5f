"""Task groups whose failure is that of one task."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from noetl_chassis.task_group import open_task_group

Task = Callable[[], Coroutine[Any, Any, None]]


class LostError(Exception):
    """What a task of these tests fails with."""


async def fails() -> None:
    raise LostError from OSError("reset")


async def waits() -> None:
    await asyncio.Event().wait()


async def beside(*tasks: Task, body: Task) -> None:
    """Run tasks side by side, and a body among them."""
    async with open_task_group() as group:
        for task in tasks:
            group.create_task(task())
        await body()


@pytest.mark.parametrize(
    ("tasks", "body"),
    [
        pytest.param([waits, fails], waits, id="a task"),
        pytest.param([waits], fails, id="the body"),
        pytest.param([waits, lambda: beside(fails, body=waits)], waits, id="a group within"),
    ],
)
async def test_a_failure_comes_out_as_it_is(tasks: list[Task], body: Task) -> None:
    with pytest.raises(LostError) as raised:
        await beside(*tasks, body=body)
    assert isinstance(raised.value.__cause__, OSError)


async def test_the_first_of_several_failures_comes_out() -> None:
    async def fails_when_called_off() -> None:
        try:
            await waits()
        finally:
            raise ValueError

    with pytest.raises(LostError):
        await beside(fails_when_called_off, fails, body=waits)


async def test_the_others_have_ended_when_a_failure_comes_out() -> None:
    ended: list[str] = []

    async def takes_note() -> None:
        try:
            await waits()
        finally:
            ended.append("task")

    with pytest.raises(LostError):
        await beside(takes_note, fails, body=waits)
    assert ended == ["task"]


async def test_who_is_called_off_is_cancelled() -> None:
    task = asyncio.create_task(beside(waits, body=waits))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
