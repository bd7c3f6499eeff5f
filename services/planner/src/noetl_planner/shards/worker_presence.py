"""The latest heartbeats of workers, from which the planner chooses a worker for an offer."""

import structlog
from msgspec import Struct, structs

from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts import subjects
from noetl_contracts.commands.worker_pools import SILENT_S, WorkerHeartbeat, decode_worker_heartbeat
from noetl_contracts.errors import MalformedMessage, SubjectError
from noetl_contracts.ids import WorkerId
from noetl_messaging.streams.hint_receiver import receive_hints
from noetl_messaging.streams.ports import Hints

log = structlog.get_logger(__name__)

# Of more workers than this the ones that spoke longest ago are forgotten.
WORKERS_MAX = 4096


class ReceivedHeartbeat(Struct, frozen=True, kw_only=True):
    """A heartbeat of a worker, and when it arrived."""

    beat: WorkerHeartbeat
    at_s: float


class WorkerPresence:
    """The workers that spoke lately; what they were offered since counts as running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        # The last of each worker by its lanes, also of who leaves: they tell who is silent.
        self._last_heartbeats: dict[WorkerId, dict[tuple[str, ...], ReceivedHeartbeat]] = {}
        # Those that commands are offered to. Each lane's host of a worker speaks for itself.
        self._received_heartbeats: dict[tuple[WorkerId, tuple[str, ...]], ReceivedHeartbeat] = {}

    def note_beat(self, beat: WorkerHeartbeat) -> None:
        """Remember how a worker is; one without any capacity is leaving."""
        key = (beat.worker_id, beat.lanes)
        self._note_last(beat)
        self._received_heartbeats.pop(key, None)
        self._show_free_capacity(beat.worker_id, beat)
        if beat.capacity > 0:
            self._received_heartbeats[key] = ReceivedHeartbeat(
                beat=beat, at_s=self._clock.monotonic_s()
            )
        while len(self._received_heartbeats) > WORKERS_MAX:
            del self._received_heartbeats[next(iter(self._received_heartbeats))]

    def count_offer(self, worker_id: WorkerId, host: str) -> None:
        """Count an offer against a worker's free capacity, until its next heartbeat."""
        for key, received_heartbeat in self._received_heartbeats.items():
            if key[0] == worker_id and host in key[1]:
                beat = structs.replace(
                    received_heartbeat.beat, running=received_heartbeat.beat.running + 1
                )
                self._received_heartbeats[key] = ReceivedHeartbeat(
                    beat=beat, at_s=received_heartbeat.at_s
                )

    def forget_worker(self, worker_id: WorkerId) -> None:
        """Forget the heartbeats of a worker: it gets no offers before its next heartbeat."""
        for key in [key for key in self._received_heartbeats if key[0] == worker_id]:
            del self._received_heartbeats[key]

    def list_beats(self) -> tuple[WorkerHeartbeat, ...]:
        """Return how those are that spoke lately."""
        oldest_s = self._clock.monotonic_s() - SILENT_S
        for key in [
            worker_key
            for worker_key, received_heartbeat in self._received_heartbeats.items()
            if received_heartbeat.at_s < oldest_s
        ]:
            del self._received_heartbeats[key]
        return tuple(received.beat for received in self._received_heartbeats.values())

    def is_silent(self, worker_id: WorkerId) -> bool | None:
        """Tell whether a worker has been silent for longer than one that lives may be.

        None where that is not known: this process has not listened for so long, or the worker has
        said that it leaves, and finishes what it holds.
        """
        last = self._last_heartbeats.get(worker_id, {}).values()
        if any(self._is_fresh(received) for received in last):
            return False
        is_leaving = bool(last) and all(received.beat.capacity <= 0 for received in last)
        return None if is_leaving or not self._has_listened() else True

    def has_worker(self, pool: str, host: str) -> bool | None:
        """Tell whether a worker with a lane of this host in a pool was heard lately.

        None while this process has not listened for long enough to know.
        """
        if any(
            received.beat.pool == pool and host in lanes and self._is_fresh(received)
            for heartbeats in self._last_heartbeats.values()
            for lanes, received in heartbeats.items()
        ):
            return True
        return False if self._has_listened() else None

    def _note_last(self, beat: WorkerHeartbeat) -> None:
        heartbeats = self._last_heartbeats.pop(beat.worker_id, {})
        heartbeats[beat.lanes] = ReceivedHeartbeat(beat=beat, at_s=self._clock.monotonic_s())
        self._last_heartbeats[beat.worker_id] = heartbeats
        if len(self._last_heartbeats) > WORKERS_MAX:
            del self._last_heartbeats[next(iter(self._last_heartbeats))]

    def _is_fresh(self, received: ReceivedHeartbeat) -> bool:
        return received.at_s >= self._clock.monotonic_s() - SILENT_S

    def _has_listened(self) -> bool:
        return self._clock.monotonic_s() - self._began_s >= SILENT_S

    def _show_free_capacity(self, worker_id: WorkerId, beat: WorkerHeartbeat) -> None:
        """Measure the room of a worker, that of all its lanes together."""
        others = sum(
            received_heartbeat.beat.free_capacity
            for key, received_heartbeat in self._received_heartbeats.items()
            if key[0] == worker_id
        )
        free = others + beat.free_capacity
        instruments.set_gauge(names.WORKER_FREE, free, labels={names.WORKER: worker_id})

    async def listen_to_workers(self, hints: Hints) -> None:
        """Receive heartbeats of workers until cancelled; what is old leaves the cache."""
        await receive_hints(
            lambda: hints.subscribe_below(subjects.WORKERS),
            lambda hint: self._receive_beat(*hint),
            subject=subjects.WORKERS,
        )

    def _receive_beat(self, subject: str, data: bytes) -> None:
        """Note a heartbeat that came under the subject of its pool and worker, and no other."""
        try:
            beat = decode_worker_heartbeat(data)
            is_own = subject == subjects.build_presence_subject(beat.pool, beat.worker_id)
        except (MalformedMessage, SubjectError) as problem:
            log.warning("heartbeat cannot be decoded", reason=str(problem))
            return
        if is_own:
            self.note_beat(beat)
        else:
            log.warning("heartbeat of another worker ignored", subject=subject)
