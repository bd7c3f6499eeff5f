"""The counters, and gauges of trouble, that a service shows from its start, at zero.

`rate` and `increase` compare two samples of one series. A counter that first appears at 5 has not
risen for them, so that the alert on it would miss the first burst.
"""

from collections.abc import Iterator
from itertools import product

from noetl_chassis.observability import instruments, names
from noetl_chassis.observability.names import Metric

_TERMINAL = ("COMPLETED", "FAILED", "CANCELLED")
# Tiers that may be in front of the payload store.
_TIERS = ("memory", "shared")
# Without labels, by service.
_PLAIN: dict[str, tuple[Metric, ...]] = {
    "planner": (names.VERSION_CONFLICTS,),
    "worker": (
        names.LEASES_LOST,
        names.WAVE_FRAMES,
        names.RATE_LIMITED_CALLS,
        names.RATE_LIMIT_WAITED,
        names.RATE_LIMIT_CONTENTIONS,
    ),
    "projector": (
        names.EVENTS_PROJECTED,
        names.EVENTS_READ_FOR_GAPS,
        names.PROJECTOR_DUPLICATES,
        names.PROJECTOR_MISPLACED,
        names.PROJECTOR_UNOWNED,
        names.PROJECTOR_UNSHARDABLE,
        names.PROJECTOR_STALE,
        names.PROJECTOR_GAPS,
        names.LINEAGE_TOLD,
    ),
    "reaper": (
        names.LEASES_EXPIRED,
        names.REQUESTS_REDRIVEN,
        names.EXECUTIONS_NUDGED,
        names.LETTERS_HANDED_OVER,
        names.TOPOLOGY_REPAIRED,
        names.TENANT_READS_ENDED,
        names.PAYLOADS_PURGED_BYTES,
        names.EVENTS_RETIRED,
    ),
}
# With labels whose values are known, by service.
_LABELLED: dict[str, tuple[tuple[Metric, dict[str, tuple[str, ...]]], ...]] = {
    "planner": (
        (names.EXECUTIONS_ENDED, {names.OUTCOME: _TERMINAL}),
        (names.WORK_LOST, {names.KIND: ("command", "frame")}),
    ),
    "worker": (
        (names.COMMANDS_ENDED, {names.OUTCOME: ("ended", "leaselost")}),
        (names.FRAMES_ENDED, {names.OUTCOME: ("committed", "failed")}),
        (names.WAVES_ENDED, {names.OUTCOME: ("ended", "lost")}),
        (names.STORAGE_READS, {names.TIER: _TIERS, names.OUTCOME: ("hit", "miss")}),
        (names.STORAGE_ADMISSIONS, {names.TIER: _TIERS, names.OUTCOME: ("kept", "refused")}),
    ),
    "outbox": (
        (
            names.OUTBOX_PUBLISHED,
            {names.OUTCOME: ("published", "released", "postponed", "too_large")},
        ),
    ),
    "projector": ((names.LINEAGE_DELIVERIES, {names.OUTCOME: ("delivered", "refused", "failed")}),),
    "reaper": (
        (names.PAYLOADS_COLLECTED, {names.OUTCOME: ("shelved", "restored", "purged", "named")}),
    ),
}


# Gauges that are else set when there is trouble.
_GAUGES: dict[str, tuple[Metric, ...]] = {
    "worker": (names.STORE_WAITS,),
    "projector": (names.PROJECTOR_POISONED, names.PROJECTOR_BEHIND),
}


def begin_counters(service: str) -> None:
    """Show at zero what this service counts."""
    for metric in _GAUGES.get(service, ()):
        instruments.set_gauge(metric, 0)
    for metric in _PLAIN.get(service, ()):
        instruments.begin_counter(metric)
    for metric, labels in _list_labelled_counters(service):
        instruments.begin_counter(metric, labels=labels)


def _list_labelled_counters(service: str) -> Iterator[tuple[Metric, dict[str, str]]]:
    for metric, values_by_label in _LABELLED.get(service, ()):
        for values in product(*values_by_label.values()):
            yield metric, dict(zip(values_by_label, values, strict=True))
