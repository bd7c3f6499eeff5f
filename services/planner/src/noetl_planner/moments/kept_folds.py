"""Folds that were used last, within bounds; a request takes one out, and puts it back."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from noetl_replay.state import ExecutionState

KEPT_S = 60.0


class KeptFold(Protocol):
    """A history folded up to a version."""

    state: ExecutionState

    @property
    def weight(self) -> int:
        """Return how much memory it takes, in a unit of its kind."""


FoldT = TypeVar("FoldT", bound=KeptFold)


class KeptFolds(Generic[FoldT]):
    """At most so many folds of so much weight in all; one alone may weigh more.

    One that is in use is not among them. Each is dropped a minute after its last use.
    """

    def __init__(self, *, folds_max: int, weight_max: int) -> None:
        self._folds: list[FoldT] = []
        # By the identity of a fold that is kept.
        self._drops: dict[int, asyncio.TimerHandle] = {}
        self._folds_max = folds_max
        self._weight_max = weight_max

    def take_latest(self, is_fit: Callable[[FoldT], bool]) -> FoldT | None:
        """Take out the fold that has come farthest, of those that fit."""
        fitting = [fold for fold in self._folds if is_fit(fold)]
        if not fitting:
            return None
        fold = max(fitting, key=lambda fold: fold.state.version)
        self._forget_fold(fold)
        return fold

    def keep_fold(self, fold: FoldT) -> None:
        """Keep a fold for a while, and forget others until all are in bounds."""
        self._folds.append(fold)
        while len(self._folds) > 1 and (
            len(self._folds) > self._folds_max
            or sum(kept.weight for kept in self._folds) > self._weight_max
        ):
            self._forget_fold(self._folds[0])
        loop = asyncio.get_running_loop()
        self._drops[id(fold)] = loop.call_later(KEPT_S, self._forget_fold, fold)

    def _forget_fold(self, fold: FoldT) -> None:
        self._folds = [kept for kept in self._folds if kept is not fold]
        if drop := self._drops.pop(id(fold), None):
            drop.cancel()
