"""What an hour of samples comes to: trends, and a curve thin enough to be drawn and kept."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from tests.load.samples import MIB, Sample
from tests.load.trend import settled, slope, trend

_HOUR_S = 3_600.0
_POINTS_MAX = 120
_STORES: dict[str, Callable[[Sample], float]] = {
    "events": lambda one: one.events,
    "rows of the outbox": lambda one: one.outbox_rows,
    "connections to PostgreSQL": lambda one: one.connections,
    "the ledger's database, MiB": lambda one: one.ledger_mib,
    "JetStream's store, MiB": lambda one: one.jetstream_mib,
    "the payload store, MiB": lambda one: one.payloads_mib,
    "shared memory, MiB": lambda one: one.shared_mib,
    "logs, MiB": lambda one: one.logs_mib,
}


def summed(samples: Sequence[Sample]) -> dict[str, Any]:
    """Judge every process that was there all the time, and tell how the stores grew."""
    names = set.intersection(*(set(sample.held) for sample in samples))
    kept = [name for name in samples[0].held if name in names]
    first, last = samples[0], samples[-1]
    grown = (last.ledger_mib - first.ledger_mib) * MIB / max(1, last.events - first.events)
    return {
        "samples": len(samples),
        "memory": {
            name: msgspec.to_builtins(
                trend([(sample.at_s, sample.held[name].family_private_mib) for sample in samples])
            )
            for name in kept
        },
        "files": {name: max(sample.held[name].files for sample in samples) for name in kept},
        "stores": {about: _grown(samples, read) for about, read in _STORES.items()},
        "bytes_per_event": round(grown),
        "curve": _curve(samples, kept),
    }


def _grown(samples: Sequence[Sample], read: Callable[[Sample], float]) -> dict[str, float]:
    points = [(sample.at_s, read(sample)) for sample in samples]
    return {
        "first": points[0][1],
        "last": points[-1][1],
        "slope_h": round(slope(settled(points)) * _HOUR_S, 1),
    }


def _curve(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Any]:
    thin = samples[:: -(-len(samples) // _POINTS_MAX)]
    return {
        "minutes": [round(item.at_s / 60, 1) for item in thin],
        "family_mib": {
            name: [round(item.held[name].family_private_mib, 1) for item in thin] for name in names
        },
    }
