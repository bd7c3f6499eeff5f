"""States that are likely to be needed again, bounded by number and by bytes."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_replay.state import ExecutionState

# Weighing costs an encoding; a state is small and changes its size slowly.
WEIGH_EVERY_VERSIONS = 256


class ProjectedState:
    """A state and what is known of its copies: projected up to `position`, kept up to `remembered`.

    The state runs ahead of `position` only while its rows are on their way to the store.
    """

    __slots__ = ("bytes", "position", "remembered", "state", "weighed_at")

    def __init__(self, state: ExecutionState, *, remembered: int) -> None:
        self.state = state
        self.position = state.version
        self.remembered = remembered
        self.weighed_at = state.version
        self.bytes = len(codec.encode_json(state))

    def measure_growth(self) -> int:
        """Weigh the state anew when it has grown old; return by how many bytes it grew."""
        if self.state.version - self.weighed_at < WEIGH_EVERY_VERSIONS:
            return 0
        before, self.bytes = self.bytes, len(codec.encode_json(self.state))
        self.weighed_at = self.state.version
        return self.bytes - before


class StateCache:
    """Least recently used goes first; dropping any of it changes nothing but time."""

    def __init__(self, *, states_max: int, bytes_max: int) -> None:
        self._state_by_execution: OrderedDict[ExecutionId, ProjectedState] = OrderedDict()
        self._states_max = states_max
        self._bytes_max = bytes_max
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._state_by_execution)

    def __iter__(self) -> Iterator[ExecutionId]:
        return iter(self._state_by_execution)

    def find_state(self, execution_id: ExecutionId) -> ProjectedState | None:
        """Return a state and count it as used."""
        projected_state = self._state_by_execution.get(execution_id)
        if projected_state is not None:
            self._state_by_execution.move_to_end(execution_id)
        return projected_state

    def put_state(self, projected_state: ProjectedState) -> None:
        """Keep a state."""
        self.drop_state(projected_state.state.execution_id)
        self._state_by_execution[projected_state.state.execution_id] = projected_state
        self.bytes += projected_state.bytes

    def drop_state(self, execution_id: ExecutionId) -> None:
        """Forget a state."""
        projected_state = self._state_by_execution.pop(execution_id, None)
        if projected_state is not None:
            self.bytes -= projected_state.bytes

    def enforce_bounds(self, touched: Iterable[ExecutionId]) -> None:
        """Weigh what may have grown, drop the least recently used until the bounds hold."""
        for execution_id in touched:
            if execution_id in self._state_by_execution:
                self.bytes += self._state_by_execution[execution_id].measure_growth()
        while self._state_by_execution and (
            len(self._state_by_execution) > self._states_max or self.bytes > self._bytes_max
        ):
            self.drop_state(next(iter(self._state_by_execution)))
