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


class HeardBeat(Struct, frozen=True, kw_only=True):
    """A heartbeat of a worker, and when it arrived."""

    beat: WorkerHeartbeat
    at_s: float


class WorkerPresence:
    """The workers that spoke lately; what they were offered since counts as running."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Each lane's host of a worker speaks for itself.
        self._heard: dict[tuple[WorkerId, tuple[str, ...]], HeardBeat] = {}

    def note_beat(self, beat: WorkerHeartbeat) -> None:
        """Remember how a worker is; one without any capacity is leaving."""
        key = (beat.worker_id, beat.lanes)
        self._heard.pop(key, None)
        self._show_free_capacity(beat.worker_id, beat)
        if beat.capacity > 0:
            self._heard[key] = HeardBeat(beat=beat, at_s=self._clock.monotonic_s())
        while len(self._heard) > WORKERS_MAX:
            del self._heard[next(iter(self._heard))]

    def count_offer(self, worker_id: WorkerId, host: str) -> None:
        """Count an offer against a worker's free capacity, until its next heartbeat."""
        for key, heard_beat in self._heard.items():
            if key[0] == worker_id and host in key[1]:
                beat = structs.replace(heard_beat.beat, running=heard_beat.beat.running + 1)
                self._heard[key] = HeardBeat(beat=beat, at_s=heard_beat.at_s)

    def forget_worker(self, worker_id: WorkerId) -> None:
        """Forget the heartbeats of a worker: it gets no offers before its next heartbeat."""
        for key in [key for key in self._heard if key[0] == worker_id]:
            del self._heard[key]

    def list_beats(self) -> tuple[WorkerHeartbeat, ...]:
        """Return how those are that spoke lately."""
        oldest_s = self._clock.monotonic_s() - SILENT_S
        for key in [
            worker_key
            for worker_key, heard_beat in self._heard.items()
            if heard_beat.at_s < oldest_s
        ]:
            del self._heard[key]
        return tuple(heard.beat for heard in self._heard.values())

    def _show_free_capacity(self, worker_id: WorkerId, beat: WorkerHeartbeat) -> None:
        """Measure the room of a worker, that of all its lanes together."""
        others = sum(
            heard_beat.beat.free_capacity
            for key, heard_beat in self._heard.items()
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
