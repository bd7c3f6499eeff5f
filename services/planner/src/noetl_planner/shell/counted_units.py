"""Units of a loop as they are encoded: results into a stream, parts into a list."""

from collections.abc import AsyncIterator

from noetl_contracts import codec
from noetl_planner.shell.gathered import Unit


class CountedUnits:
    """Encodes units as they come: results into a stream, parts into a list."""

    def __init__(self, units: AsyncIterator[Unit], found: list[bytes]) -> None:
        self._units = units
        self._found = found
        self.count = 0
        self.is_over = False

    async def head(self, bytes_max: int) -> bytes:
        """Read on until everything is read, or until there is more than fits."""
        pieces: list[bytes] = []
        size = 0
        async for piece in self._pieces():
            pieces.append(piece)
            size += len(piece) + 1
            if size > bytes_max:
                return b",".join(pieces)
        self.is_over = True
        return b",".join(pieces)

    async def payload(self, head: bytes, *, tail: bytes) -> AsyncIterator[bytes]:
        """Yield the whole payload of a loop's result."""
        yield b'{"results":[' + head
        async for piece in self._pieces():
            yield b"," + piece
        yield b'],"stats":' + tail + b"}"

    async def _pieces(self) -> AsyncIterator[bytes]:
        async for unit in self._units:
            self._found.append(codec.encode(unit.part))
            if unit.results:
                self.count += len(unit.results)
                yield codec.encode(unit.results)[1:-1]
