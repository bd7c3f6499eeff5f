"""Counts refused reports, and logs them once a minute at most."""

import structlog

from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_planner.facts.report_checks import ReportRefused

LOG_EVERY_S = 60.0

log = structlog.get_logger(__name__)


class ReportRefusals:
    """The refused reports of one process: the dead letters hold each of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at_s: float | None = None
        self._unlogged = 0

    def count_refusal(self, refusal: ReportRefused) -> None:
        """Count a refused report; log it with those since the latest line."""
        instruments.add_to_counter(names.REPORTS_REFUSED, labels={names.REASON: refusal.fault})
        self._unlogged += 1
        now_s = self._clock.monotonic_s()
        if self._logged_at_s is None or now_s - self._logged_at_s >= LOG_EVERY_S:
            log.error(
                "reports refused",
                reports=self._unlogged,
                fault=str(refusal.fault),
                latest=str(refusal),
            )
            self._logged_at_s, self._unlogged = now_s, 0
