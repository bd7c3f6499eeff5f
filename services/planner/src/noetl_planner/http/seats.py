"""How many clients may follow executions at once."""

from collections.abc import Iterator
from contextlib import contextmanager


class Seats:
    """How many clients follow at the moment."""

    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Keep a seat for as long as the block runs."""
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    def has_room(self, seats_max: int) -> bool:
        """Tell whether one more client may follow."""
        return self._taken < seats_max
