"""How many clients may follow executions at once: all, one address, and of one execution."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct


class SeatLimits(Struct, frozen=True, kw_only=True):
    """How many seats there are in all, for one client's address, and for one execution."""

    all: int = 256
    client: int = 64
    execution: int = 128


class Seats:
    """Who follows what at the moment."""

    def __init__(self) -> None:
        self._taken = 0
        self._taken_by_client: Counter[str] = Counter()
        self._taken_by_execution: Counter[str] = Counter()

    @contextmanager
    def taken(self, client: str, execution_id: str) -> Iterator[None]:
        """Keep a seat for as long as the block runs."""
        self._count(client, execution_id, 1)
        try:
            yield
        finally:
            self._count(client, execution_id, -1)

    def has_room(self, limits: SeatLimits) -> bool:
        """Tell whether one more client may follow."""
        return self._taken < limits.all

    def client_has_room(self, client: str, limits: SeatLimits) -> bool:
        """Tell whether one client may follow once more."""
        return self._taken_by_client[client] < limits.client

    def execution_has_room(self, execution_id: str, limits: SeatLimits) -> bool:
        """Tell whether one execution may be followed once more."""
        return self._taken_by_execution[execution_id] < limits.execution

    def _count(self, client: str, execution_id: str, change: int) -> None:
        self._taken += change
        for counts, key in (
            (self._taken_by_client, client),
            (self._taken_by_execution, execution_id),
        ):
            counts[key] += change
            if not counts[key]:
                del counts[key]
