"""Log lines on their way to a collector, as they stand in the log."""

import logging
from typing import Any

import msgspec
from opentelemetry._logs import Logger, SeverityNumber

from noetl_chassis import names

# What these say of a collector that is away would be one more line for it.
_OWN_LOGGERS = ("opentelemetry", "requests", "urllib3")
# The record has them beside its fields.
_BESIDE = frozenset(
    {
        "event",
        "level",
        "timestamp",
        names.FIELD_INSTANCE,
        names.FIELD_SERVICE,
        names.FIELD_SPAN,
        names.FIELD_TRACE,
    }
)
_SEVERITY_BY_LEVEL = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)


class LogExport(logging.Handler):
    """Hands every line over as its formatter writes it: as JSON, its secrets masked."""

    def __init__(self, logger: Logger, formatter: logging.Formatter) -> None:
        super().__init__()
        self._logger = logger
        self.setFormatter(formatter)

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what the exporters say themselves."""
        return record.name.partition(".")[0] not in _OWN_LOGGERS and super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over, with the span that is current."""
        try:
            fields: dict[str, Any] = msgspec.json.decode(self.format(record))
            self._logger.emit(
                timestamp=int(record.created * 1_000_000_000),
                severity_number=_severity(record.levelno),
                severity_text=record.levelname,
                body=str(fields.get("event", "")),
                attributes={
                    key: value
                    for key, value in fields.items()
                    if key not in _BESIDE and value is not None
                },
            )
        except (msgspec.MsgspecError, TypeError, ValueError):
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's own name)
        """Let go of a line that cannot be handed over: the log itself has it."""


def _severity(level: int) -> SeverityNumber:
    for least, severity in _SEVERITY_BY_LEVEL:
        if level >= least:
            return severity
    return SeverityNumber.DEBUG
