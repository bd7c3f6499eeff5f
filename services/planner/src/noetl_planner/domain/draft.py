"""A decision in the making: the state as it will be, and the events that make it so."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec, locators
from noetl_contracts.chunks import Taken
from noetl_contracts.commands import Command
from noetl_contracts.envelope import (
    Envelope,
    aggregate_of,
    schema_name,
    schema_version,
    seal,
)
from noetl_contracts.events import Event
from noetl_contracts.facts import Fact, FactBatch
from noetl_contracts.ids import CommandId, EventId, ExecutionId, WorkerId
from noetl_contracts.lanes import Pools
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.workers import WorkerBeat
from noetl_planner.domain.crossover import Cores
from noetl_planner.domain.keys import key_of
from noetl_planner.domain.program import Program
from noetl_planner.domain.reads import Reads
from noetl_planner.domain.reporters import REPORTED_EVENTS, find_reporter
from noetl_playbook.handles import PayloadNeeded
from noetl_playbook.results import Stored
from noetl_playbook.templates.render_record import Renders
from noetl_replay.fold import evolve
from noetl_replay.state import ExecutionState

# What `ctx` may hold besides what it holds by reference.
CTX_BYTES_MAX = 4 * 1024 * 1024


class Stamp(Struct, frozen=True, kw_only=True):
    """What a decision may not find out for itself: the time, and where identities come from."""

    now: datetime
    producer: str
    next_event_id: Callable[[], EventId]
    # How workers said they are, lately.
    workers: Sequence[WorkerBeat] = ()


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that the deployment sets."""

    activations_max: int = 100_000
    items_max: int = 100_000
    reference_items_max: int = 10_000_000
    shards_max: int = 10_000
    in_flight_max: int = 10_000
    cancel_grace_s: float = 30.0
    command_lease_s: float = 30.0
    command_heartbeat_s: float = 10.0
    step_attempts_max: int = 3
    # How long a command is the nearest worker's alone to take; 0: nothing is offered.
    offer_s: float = 0.0
    ctx_bytes_max: int = CTX_BYTES_MAX
    # What one fact may lead to looking into of what is kept by reference.
    read_bytes_max: int = 64 * 1024 * 1024
    read_values_max: int = 64
    # Rows from which on `engine: auto` takes Spark for bodies that compute; 0: never.
    spark_rows_min: int = 0
    # By which `engine: auto` finds out where the rest of a loop ends sooner.
    cores: Cores = Cores()
    # Tool kinds that this deployment runs; empty: all that this release has.
    tools: tuple[str, ...] = ()
    pools: Pools = Pools()
    # Tenants with their own share of every pool.
    tenants: frozenset[str] = frozenset()
    # What templates read as `env`, which the deployment chose to show.
    template_env: Mapping[str, str] = msgspec.field(default_factory=dict)


class Draft:
    """Collects events, and folds each into the state as it is emitted.

    `loaded` maps the digest of a payload to its value: what a template needs and is not there is
    asked for by `PayloadNeeded`, and the decision is made again with it. So it is with `renders`:
    `SlowRenderError` asks for one that takes long.
    """

    def __init__(
        self,
        *,
        state: ExecutionState,
        program: Program,
        stamp: Stamp,
        limits: Limits,
        loaded: Mapping[str, Any],
        causation_id: str | None = None,
        traceparent: str | None = None,
        renders: Renders | None = None,
    ) -> None:
        self.renders = renders
        self.state = state
        self.program = program
        self.now = stamp.now
        self.limits = limits
        self.loaded = loaded
        self.reads = Reads(bytes_max=limits.read_bytes_max, values_max=limits.read_values_max)
        self.traceparent = traceparent
        self.envelopes: list[Envelope] = []
        self.payloads: dict[str, bytes] = {}
        self.kept: dict[str, Any] = {}
        self.to_send: dict[CommandId, None] = {}
        self.to_stop: dict[CommandId, None] = {}
        self.to_pause: dict[CommandId, None] = {}
        self.to_collect: dict[str, None] = {}
        self.taken: dict[CommandId, Taken] = {}
        self.told: list[FactBatch] = []
        self.workers = stamp.workers
        self.offered_to: Counter[tuple[WorkerId, str]] = Counter()
        self.granted: dict[CommandId, int] = {}
        self.withdrawn: list[WorkerId] = []
        self.stamp = stamp
        self._causation_id = causation_id
        self._reporter: str | None = None
        self._is_fact_new = True
        self.correlation_id = state.correlation_id or str(state.execution_id)

    def begin_fact(self, fact: Fact, *, key: str) -> None:
        """Make a fact the cause of the next event, and that event the cause of those after it.

        `key` names the message that brought the fact.
        """
        self._causation_id = key
        self._reporter = find_reporter(self.state, fact)
        self._is_fact_new = True

    def emit(self, event: Event) -> Envelope:
        """Append an event to the decision and fold it into the state.

        Its producer is the worker whose report it records, else this planner.
        """
        state = self.state
        kind, aggregate = aggregate_of(state.execution_id, event)
        envelope = Envelope(
            event_id=self.stamp.next_event_id(),
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            execution_id=state.execution_id,
            stream_id=f"execution/{state.execution_id}",
            stream_version=state.version + 1,
            aggregate_id=aggregate,
            aggregate_type=kind,
            schema_name=schema_name(event),
            schema_version=schema_version(event),
            event_time=self.now,
            producer=self._producer_of(event),
            event=event,
            causation_id=self._causation_id,
            correlation_id=self.correlation_id,
            idempotency_key=key_of(event),
            meta=self._meta(),
        )
        sealed = seal(envelope, state.checksum)
        self.state = evolve(state, sealed)
        self.envelopes.append(sealed)
        if self._is_fact_new:
            self._causation_id, self._is_fact_new = sealed.event_id, False
        return sealed

    def _producer_of(self, event: Event) -> str:
        if self._reporter is not None and type(event) in REPORTED_EVENTS:
            return self._reporter
        return self.stamp.producer

    def _meta(self) -> dict[str, Any]:
        """Name the trace at the begin: commands carry it, and so do the facts about them."""
        if self.state.version > 0 or self.traceparent is None:
            return {}
        return {"traceparent": self.traceparent}

    def mint(self) -> ExecutionId:
        """Return the identity of an execution that this one asks for."""
        return ExecutionId(self.stamp.next_event_id())

    def tell(self, execution_id: ExecutionId, fact: Fact, *, key: str) -> None:
        """Send a fact to another execution of the tenant, with the events of this decision."""
        self.told.append(
            FactBatch(
                key=key,
                execution_id=execution_id,
                tenant_id=self.state.tenant_id,
                organization_id=self.state.organization_id,
                producer=self.stamp.producer,
                facts=[fact],
                traceparent=self.traceparent,
            )
        )

    def keep(self, value: Any) -> PayloadRef:
        """Refer to a value that the shell must store before the events are appended."""
        rows = len(value) if isinstance(value, list) else None
        reference = self.keep_bytes(codec.canonical(value), row_count=rows)
        self.kept[reference.sha256] = value
        return reference

    def keep_bytes(self, data: bytes, *, row_count: int | None = None) -> PayloadRef:
        """Refer to JSON that the shell must store before the events are appended."""
        digest = codec.digest(data)
        self.payloads[digest] = data
        return PayloadRef(
            uri=locators.payload(self.state.tenant_id, self.state.organization_id, digest),
            sha256=digest,
            media_type=JSON_MEDIA_TYPE,
            payload_bytes=len(data),
            row_count=row_count,
        )

    def value_of(self, reference: PayloadRef) -> Any:
        """Return the value of a payload, kept by this decision or loaded before it.

        Raises `PayloadNeeded` when it has to be loaded first.
        """
        digest = reference.sha256
        if digest in self.kept:
            return self.kept[digest]
        if digest in self.payloads:
            self.kept[digest] = codec.decode(self.payloads[digest])
            return self.kept[digest]
        try:
            return self.loaded[digest]
        except KeyError:
            raise PayloadNeeded(Stored(reference=reference, locator=reference.uri)) from None


class Offer(Struct, frozen=True, kw_only=True):
    """A command that one worker may ask for before all others."""

    worker_id: WorkerId
    command: Command


class Decision(Struct, frozen=True, kw_only=True):
    """What a batch of facts led to.

    `payloads` are stored before the append; `commands` are sent with it, and what is `told` to
    other executions; for `to_collect` the shell gathers item results afterwards; `to_stop` and
    `to_pause` are worth a hint to their workers, and so is how far the planner has `taken` their
    streams; `offers` go to single workers, `granted` are attempts that such workers now have, and
    `withdrawn` names workers that took no offer in time; `wake_at` is when the execution wants to
    be looked at again.
    """

    envelopes: list[Envelope]
    payloads: dict[str, bytes] = msgspec.field(default_factory=dict)
    commands: list[Command] = msgspec.field(default_factory=list)
    told: list[FactBatch] = msgspec.field(default_factory=list)
    to_stop: list[CommandId] = msgspec.field(default_factory=list)
    to_pause: list[CommandId] = msgspec.field(default_factory=list)
    to_collect: list[str] = msgspec.field(default_factory=list)
    taken: dict[CommandId, Taken] = msgspec.field(default_factory=dict)
    offers: list[Offer] = msgspec.field(default_factory=list)
    granted: dict[CommandId, int] = msgspec.field(default_factory=dict)
    withdrawn: list[WorkerId] = msgspec.field(default_factory=list)
    wake_at: datetime | None = None
