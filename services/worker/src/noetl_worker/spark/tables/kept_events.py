"""Spark's events of one task, as its driver hands them to the worker; needs no Spark."""

# As JSON, which is read by windows.
EVENT_BYTES_MAX = 16 * 1024 * 1024


class KeptEvents:
    """Takes lines of Spark's event log up to a size; what follows is counted."""

    def __init__(self, *, bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_left = bytes_max
        self.lines: list[str] = []
        self.left_out = 0

    def add_line(self, line: str) -> None:
        """Keep a line, unless there is no room: then no later one is kept either."""
        self._bytes_left -= len(line.encode())
        if self._bytes_left < 0:
            self.left_out += 1
        else:
            self.lines.append(line)
