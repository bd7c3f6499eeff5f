"""What pages are shown of runs as they are: built once for all pages that ask at the same time."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

# Runs that are looked at; of more the one that was asked for least lately is forgotten.
RUNS_MAX = 16
# What changes without an event, such as what a run waits for, is at most so old.
SHARED_S = 1.0

T = TypeVar("T")
Versions = tuple[int, int]


class _SharedMoment(Generic[T]):
    """The latest moment of one run; it is built by one caller at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.versions: Versions | None = None
        self.built_s = 0.0
        self.moment: T | None = None


class SharedMoments(Generic[T]):
    """The latest moments of the runs that were looked at last."""

    def __init__(self) -> None:
        self._by_run: OrderedDict[str, _SharedMoment[T]] = OrderedDict()

    async def get_moment(
        self, run: str, versions: Versions, build: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the moment of a run at these versions: of a second ago, or built now.

        A caller that goes away while it builds leaves that to the next one.
        """
        shared = self._by_run.setdefault(run, _SharedMoment())
        self._by_run.move_to_end(run)
        if len(self._by_run) > RUNS_MAX:
            self._by_run.popitem(last=False)
        async with shared.lock:
            now_s = asyncio.get_running_loop().time()
            is_fresh = shared.versions == versions and now_s < shared.built_s + SHARED_S
            if shared.moment is None or not is_fresh:
                shared.moment = await build()
                shared.versions, shared.built_s = versions, now_s
            return shared.moment
