"""Frames that come in the order of their units, taken unit by unit."""

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

Frame = TypeVar("Frame")


class FramesByUnit(Generic[Frame]):
    """Reads frames as far as the unit that is asked for; one frame is held ahead."""

    def __init__(self, frames: AsyncIterator[Frame], unit_of: Callable[[Frame], int]) -> None:
        self._frames = frames
        self._unit_of = unit_of
        self._next: Frame | None = None
        self._is_over = False

    async def take(self, unit: int) -> list[Frame]:
        """Return the frames of a unit; units are asked for in their order."""
        taken: list[Frame] = []
        while not self._is_over:
            if self._next is None:
                self._next = await anext(self._frames, None)
            if self._next is None:
                self._is_over = True
            elif self._unit_of(self._next) == unit:
                taken.append(self._next)
                self._next = None
            else:
                break
        return taken
