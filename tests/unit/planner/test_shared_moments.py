"""Moments of runs as they are: built once for pages that ask together."""

import asyncio

import pytest

from noetl_planner.moments import shared_moments
from noetl_planner.moments.shared_moments import SharedMoments


class Builder:
    """Builds numbers, and waits with each until it is let go on."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.count = 0
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def build(self) -> int:
        self.count += 1
        number = self.count
        self.begun.set()
        await self.gate.wait()
        return number


async def test_pages_that_ask_together_share_one_moment() -> None:
    moments, builder = SharedMoments[int](), Builder(is_open=False)
    asking = [asyncio.ensure_future(moments.get_moment("7", (3, 3), builder.build)) for _ in "123"]
    await builder.begun.wait()
    builder.gate.set()
    assert await asyncio.gather(*asking) == [1, 1, 1]


@pytest.mark.parametrize(("run", "versions"), [("7", (4, 4)), ("7", (3, 4)), ("8", (3, 3))])
async def test_another_version_and_another_run_are_built(
    run: str, versions: tuple[int, int]
) -> None:
    moments, builder = SharedMoments[int](), Builder()
    assert await moments.get_moment("7", (3, 3), builder.build) == 1
    assert await moments.get_moment(run, versions, builder.build) == 2


async def test_what_is_old_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moments, builder = SharedMoments[int](), Builder()
    monkeypatch.setattr(shared_moments, "SHARED_S", 0.0)
    await moments.get_moment("7", (3, 3), builder.build)
    assert await moments.get_moment("7", (3, 3), builder.build) == 2


async def test_who_leaves_while_it_is_built_leaves_it_to_the_next() -> None:
    moments, builder = SharedMoments[int](), Builder(is_open=False)
    first, second = (
        asyncio.ensure_future(moments.get_moment("7", (3, 3), builder.build)) for _ in "12"
    )
    await builder.begun.wait()
    first.cancel()
    builder.gate.set()
    assert await second == 2
    assert first.cancelled()


async def test_runs_that_nobody_asked_for_lately_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments, builder = SharedMoments[int](), Builder()
    monkeypatch.setattr(shared_moments, "RUNS_MAX", 2)
    for run in ("1", "2", "1", "3"):
        await moments.get_moment(run, (3, 3), builder.build)
    assert builder.count == 3
    assert await moments.get_moment("1", (3, 3), builder.build) == 1
    assert await moments.get_moment("2", (3, 3), builder.build) == 4
