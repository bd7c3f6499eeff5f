"""Which lines of an execution's logs are wanted: by step, attempt, stream and text."""

from enum import StrEnum

from msgspec import Struct

from noetl_chassis import redaction
from noetl_contracts.log_chunks import LogChunkName, LogLine, digest_step_name

TEXT_LENGTH_MAX = 200


class LogStream(StrEnum):
    """What a line was written to; a notice is the worker's, about the log."""

    STDOUT = "stdout"
    STDERR = "stderr"
    LOGGING = "logging"
    NOTICE = "notice"


class LogFilter(Struct, frozen=True, kw_only=True):
    """What a line must have; None asks for nothing.

    `text` is a part of the line, in any case of its letters, as it is shown: what is masked is
    not found. `attempt` is one of the command, and `until_us` the latest time of a line.
    """

    step: str | None = None
    attempt: int | None = None
    stream: LogStream | None = None
    text: str | None = None
    until_us: int | None = None

    @property
    def step_digest(self) -> str | None:
        """Return what stands for the step in the names of chunks."""
        return None if self.step is None else digest_step_name(self.step)

    @property
    def is_of_lines(self) -> bool:
        """Tell whether lines have to be looked at, and not the names of chunks alone."""
        return self.stream is not None or bool(self.text) or self.until_us is not None

    def covers_chunk(self, name: LogChunkName) -> bool:
        """Tell by its name whether a chunk may hold such lines."""
        return self.step_digest in (None, name.step_digest) and self.attempt in (
            None,
            name.attempt,
        )

    def covers_line(self, line: LogLine) -> bool:
        """Tell whether a line of a covered chunk is wanted."""
        if self.stream is not None and line.stream != self.stream:
            return False
        if self.until_us is not None and line.at_us > self.until_us:
            return False
        if not self.text:
            return True
        return self.text.casefold() in redaction.mask_sealed_values(line.text).casefold()


ALL_LINES = LogFilter()
