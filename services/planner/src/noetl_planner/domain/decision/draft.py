"""The draft of one decision: its inputs and limits, and the events and messages it collects."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from noetl_contracts import codec, locators
from noetl_contracts.commands.command_work import Command, StreamProgress
from noetl_contracts.commands.state_values import StateChange, StateRecord
from noetl_contracts.commands.worker_pools import Pools, WorkerHeartbeat
from noetl_contracts.errors import ErrorObject, LocatorError
from noetl_contracts.events import Event, command_events, frame_events, step_events
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ids import CommandId, EventId, ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import (
    Envelope,
    build_schema_name,
    find_aggregate,
    get_schema_version,
    seal_envelope,
)
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.requests.facts import ChildEnded, CommandStarted, Fact, FactBatch
from noetl_planner.domain.decision.idempotency_keys import build_event_key
from noetl_planner.domain.decision.program import Program
from noetl_planner.domain.decision.spark_threshold import LaneCores
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.render_limits import LimitExceededError
from noetl_playbook.templates.render_record import RenderRecord
from noetl_playbook.views.payload_handle import PayloadNeeded
from noetl_playbook.views.results import StoredResult
from noetl_replay.fold import fold_event
from noetl_replay.state import ExecutionState


class StateNeeded(Exception):  # noqa: N818 - it asks, and nothing went wrong
    """A decision reads a value of `state` that is not loaded: load it and decide again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"state {name!r} is not loaded")
        self.name = name


# A worker says itself what it is called.
_REMEMBERED_CHARACTERS_MAX = 1024
# Events that state what a worker did; every other event states what a planner decided.
REPORTED_EVENTS = frozenset(
    {
        command_events.CommandStarted,
        command_events.CommandHeartbeat,
        command_events.CommandCompleted,
        command_events.CommandFailed,
        command_events.CommandParked,
        frame_events.FrameStarted,
        frame_events.FrameHeartbeat,
        frame_events.FrameCommitted,
        frame_events.FrameFailed,
        step_events.CallPartial,
    }
)
# What `ctx` may hold besides what it holds by reference.
CTX_BYTES_MAX = 4 * 1024 * 1024


class ReadBudget:
    """Counts each value once for a render and once for a fact, however often it is touched.

    What is in memory counts like all else: the same fact leads to the same wherever it is decided.
    """

    def __init__(self, *, bytes_max: int, values_max: int) -> None:
        self._bytes_max = bytes_max
        self._values_max = values_max
        self._of_render: dict[str, int] = {}
        self._of_fact: dict[str, int] = {}

    def begin_fact(self) -> None:
        """Count anew: what facts that came together lead to is each one's own."""
        self._of_render.clear()
        self._of_fact.clear()

    def begin_render(self) -> None:
        """Count anew what one template looks into."""
        self._of_render.clear()

    def admit_read(self, reference: PayloadRef) -> None:
        """Admit a value that a template looks into; raises `LimitExceededError`."""
        if reference.sha256 not in self._of_render:
            self._of_render[reference.sha256] = reference.payload_bytes
            count = sum(self._of_render.values())
            if count > render_limits.PLANNER.payload_bytes:
                text = render_limits.payload_too_large(count, render_limits.PLANNER)
                raise LimitExceededError(text, kind="payload_too_large")
        self.admit_fact_read(reference)

    def admit_fact_read(self, reference: PayloadRef) -> None:
        """Admit a value beside all others of the fact; raises `LimitExceededError`."""
        if reference.sha256 in self._of_fact:
            return
        self._of_fact[reference.sha256] = reference.payload_bytes
        count = sum(self._of_fact.values())
        if count > self._bytes_max:
            text = f"{count} bytes of values kept by reference, {self._bytes_max} is the limit"
            raise LimitExceededError(_build_fact_limit_message(text), kind="payload_too_large")
        if len(self._of_fact) > self._values_max:
            text = f"more than {self._values_max} values kept by reference"
            raise LimitExceededError(_build_fact_limit_message(text))


def _build_fact_limit_message(text: str) -> str:
    """Say that a decision reads too much: `text` names how many results, or how many bytes."""
    return (
        f"what follows from one event looks into {text}: name fewer of them in templates of the "
        "planner, a loop's result instead of its items', and let tasks read the others"
    )


def find_reporter(state: ExecutionState, fact: Fact) -> str | None:
    """Return the worker that reported a fact as a producer, None where no worker did."""
    worker_id: str | None = getattr(fact, "worker_id", None)
    if worker_id is None:
        return None
    worker_locator = (
        fact.worker_locator
        if isinstance(fact, CommandStarted)
        else _find_worker_locator(state, fact)
    )
    names = worker_id, worker_locator, state.tenant_id, state.organization_id
    if len(worker_id) + len(worker_locator or "") > _REMEMBERED_CHARACTERS_MAX:
        return _name_producer(*names)
    return _remember_producer(*names)


# Facts of the same few workers follow each other.
@lru_cache(maxsize=1024)
def _remember_producer(
    worker_id: str,
    process_locator: str | None,
    tenant_id: TenantId,
    organization_id: OrganizationId,
) -> str:
    return _name_producer(worker_id, process_locator, tenant_id, organization_id)


def _name_producer(
    worker_id: str,
    process_locator: str | None,
    tenant_id: TenantId,
    organization_id: OrganizationId,
) -> str:
    if process_locator is None or not _is_worker_locator(process_locator, worker_id):
        process_locator = locators.build_process_locator(
            "worker", worker_id, tenant_id, organization_id
        )
    return envelope.shorten_producer(process_locator, tenant_id, organization_id)


def _is_worker_locator(locator: str, worker_id: str) -> bool:
    """Tell whether a locator is a worker's own: it may not pass for somebody else."""
    try:
        return locators.parse_locator(locator).get_kind_and_identity() == ("worker", (worker_id,))
    except LocatorError:
        return False


def _find_worker_locator(state: ExecutionState, fact: Any) -> str | None:
    """Return what the worker of a command said when it started it."""
    command_state = state.commands.get(fact.command_id)
    return (
        command_state.worker_locator
        if command_state is not None and command_state.worker_id == fact.worker_id
        else None
    )


class DecisionInputs(Struct, frozen=True, kw_only=True):
    """What a decision may not find out for itself: the time, and where identities come from.

    `states` are the values of `state` that were read for it, by name. `start_refusal` is why the
    execution may not begin.
    """

    now: datetime
    producer: str
    next_event_id: Callable[[], EventId]
    # How workers said they are, lately.
    workers: Sequence[WorkerHeartbeat] = ()
    states: dict[str, StateRecord | None] = msgspec.field(default_factory=dict)
    start_refusal: ErrorObject | None = None


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
    cores: LaneCores = LaneCores()
    # Tool kinds that this deployment runs; empty: all that this release has.
    tools: tuple[str, ...] = ()
    pools: Pools = Pools()
    # Tenants with their own share of every pool.
    tenants: frozenset[str] = frozenset()
    # What templates read as `env`, which the deployment chose to show.
    template_env: Mapping[str, str] = msgspec.field(default_factory=dict)


class DecisionDraft:
    """Collects events, and folds each into the state as it is emitted.

    `loaded` maps the digest of a payload to its value: what a template needs and is not there is
    asked for by `PayloadNeeded`, and the decision is made again with it. So it is with the states
    of `stamp`, which `StateNeeded` asks for, and with `renders`: `SlowRenderError` asks for one
    that takes long.
    """

    def __init__(
        self,
        *,
        state: ExecutionState,
        program: Program,
        stamp: DecisionInputs,
        limits: Limits,
        loaded: Mapping[str, Any],
        causation_id: str | None = None,
        traceparent: str | None = None,
        renders: RenderRecord | None = None,
    ) -> None:
        self.renders = renders
        self.state = state
        self.program = program
        self.now = stamp.now
        self.limits = limits
        self.loaded = loaded
        self._states = dict(stamp.states)
        self.state_changes: list[StateChange] = []
        self.reads = ReadBudget(bytes_max=limits.read_bytes_max, values_max=limits.read_values_max)
        self.traceparent = traceparent
        self.envelopes: list[Envelope] = []
        self.payloads: dict[str, bytes] = {}
        self.value_by_digest: dict[str, Any] = {}
        self.to_send: dict[CommandId, None] = {}
        self.to_stop: dict[CommandId, None] = {}
        self.to_pause: dict[CommandId, None] = {}
        self.to_collect: dict[str, None] = {}
        self.stream_progress: dict[CommandId, StreamProgress] = {}
        self.sent_facts: list[FactBatch] = []
        self.workers = stamp.workers
        self.offered_to: Counter[tuple[WorkerId, str]] = Counter()
        self.granted: dict[CommandId, int] = {}
        self.withdrawn: list[WorkerId] = []
        self.stamp = stamp
        self._causation_id = causation_id
        self._reporter: str | None = None
        self.actor: Actor | UnsetType = UNSET
        self._is_fact_new = True
        self.correlation_id = state.correlation_id or str(state.execution_id)

    def begin_fact(self, fact: Fact, *, key: str, actor: Actor | UnsetType = UNSET) -> None:
        """Make a fact the cause of the next event, and that event the cause of those after it.

        `key` names the message that brought the fact, `actor` who asked for it: the next event
        carries it.
        """
        self._causation_id = key
        self._reporter = find_reporter(self.state, fact)
        self.actor = actor
        self._is_fact_new = True

    def append_event(self, event: Event) -> Envelope:
        """Append an event to the decision and fold it into the state.

        Its producer is the worker whose report it records, else this planner.
        """
        state = self.state
        kind, aggregate = find_aggregate(state.execution_id, event)
        envelope = Envelope(
            event_id=self.stamp.next_event_id(),
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            execution_id=state.execution_id,
            stream_id=f"execution/{state.execution_id}",
            stream_version=state.version + 1,
            aggregate_id=aggregate,
            aggregate_type=kind,
            schema_name=build_schema_name(event),
            schema_version=get_schema_version(event),
            event_time=self.now,
            producer=self._get_event_producer(event),
            event=event,
            causation_id=self._causation_id,
            correlation_id=self.correlation_id,
            idempotency_key=build_event_key(event),
            meta=self._build_event_meta(),
        )
        sealed = seal_envelope(envelope, state.checksum)
        self.state = fold_event(state, sealed)
        self.envelopes.append(sealed)
        if self._is_fact_new:
            self._causation_id, self._is_fact_new = sealed.event_id, False
        return sealed

    def _get_event_producer(self, event: Event) -> str:
        if self._reporter is not None and type(event) in REPORTED_EVENTS:
            return self._reporter
        return self.stamp.producer

    def _build_event_meta(self) -> dict[str, Any]:
        """Name who asked, and at the begin the trace: commands and facts about them carry it."""
        meta: dict[str, Any] = {}
        if self.state.version == 0 and self.traceparent is not None:
            meta["traceparent"] = self.traceparent
        if self._is_fact_new and self.actor is not UNSET:
            meta |= actors.build_actor_meta(self.actor)
        return meta

    def _build_own_actor(self) -> Actor:
        """Return this execution as the actor of what it asks of others, for who caused it first."""
        cause = self.state.actor if self.actor is UNSET else self.actor
        return actors.build_caused_actor(
            ActorKind.EXECUTION,
            Via.CHILD,
            self.state.execution_id,
            self.state.path,
            None if cause is UNSET else cause,
        )

    def new_execution_id(self) -> ExecutionId:
        """Return the identity of an execution that this one asks for."""
        return ExecutionId(self.stamp.next_event_id())

    def send_fact(self, execution_id: ExecutionId, fact: Fact, *, key: str) -> None:
        """Send a fact to another execution of the tenant, with the events of this decision."""
        self.sent_facts.append(
            FactBatch(
                key=key,
                execution_id=execution_id,
                tenant_id=self.state.tenant_id,
                organization_id=self.state.organization_id,
                producer=self.stamp.producer,
                facts=[fact],
                traceparent=self.traceparent,
                actor=UNSET if isinstance(fact, ChildEnded) else self._build_own_actor(),
            )
        )

    def store_value(self, value: Any) -> PayloadRef:
        """Refer to a value that the shell must store before the events are appended."""
        rows = len(value) if isinstance(value, list) else None
        reference = self.store_bytes(codec.encode_canonical(value), row_count=rows)
        self.value_by_digest[reference.sha256] = value
        return reference

    def store_bytes(self, data: bytes, *, row_count: int | None = None) -> PayloadRef:
        """Refer to JSON that the shell must store before the events are appended."""
        digest = codec.digest_hex(data)
        self.payloads[digest] = data
        return PayloadRef(
            uri=locators.build_payload_locator(
                self.state.tenant_id, self.state.organization_id, digest
            ),
            sha256=digest,
            media_type=JSON_MEDIA_TYPE,
            payload_bytes=len(data),
            row_count=row_count,
        )

    def get_state(self, name: str) -> StateRecord | None:
        """Return a value of `state`, None before it has one; raises `StateNeeded`."""
        try:
            return self._states[name]
        except KeyError:
            raise StateNeeded(name) from None

    def change_state(self, change: StateChange) -> None:
        """Have a value of `state` changed with the events of this decision."""
        self._states[change.name] = StateRecord(
            name=change.name, value=change.value, revision=change.revision
        )
        self.state_changes.append(change)

    def get_stored_value(self, reference: PayloadRef) -> Any:
        """Return the value of a payload, kept by this decision or loaded before it.

        Raises `PayloadNeeded` when it has to be loaded first.
        """
        digest = reference.sha256
        if digest in self.value_by_digest:
            return self.value_by_digest[digest]
        if digest in self.payloads:
            self.value_by_digest[digest] = codec.decode_json(self.payloads[digest])
            return self.value_by_digest[digest]
        try:
            return self.loaded[digest]
        except KeyError:
            raise PayloadNeeded(StoredResult(reference=reference, locator=reference.uri)) from None


class CommandOffer(Struct, frozen=True, kw_only=True):
    """A command that one worker may ask for before all others."""

    worker_id: WorkerId
    command: Command


class Decision(Struct, frozen=True, kw_only=True):
    """What a batch of facts led to.

    `payloads` are stored before the append; `commands` are sent with it, and what is `told` to
    other executions; for `to_collect` the shell gathers item results afterwards; `to_stop` and
    `to_pause` are worth a hint to their workers, and so is `stream_progress`, how far the planner
    is in their streams; `offers` go to single workers, `granted` are attempts that such workers now
    have, and `withdrawn` names workers that took no offer in time; `state_changes` are committed
    with the events; `wake_at` is when the execution wants to be looked at again.
    """

    envelopes: list[Envelope]
    payloads: dict[str, bytes] = msgspec.field(default_factory=dict)
    commands: list[Command] = msgspec.field(default_factory=list)
    sent_facts: list[FactBatch] = msgspec.field(default_factory=list)
    to_stop: list[CommandId] = msgspec.field(default_factory=list)
    to_pause: list[CommandId] = msgspec.field(default_factory=list)
    to_collect: list[str] = msgspec.field(default_factory=list)
    stream_progress: dict[CommandId, StreamProgress] = msgspec.field(default_factory=dict)
    offers: list[CommandOffer] = msgspec.field(default_factory=list)
    granted: dict[CommandId, int] = msgspec.field(default_factory=dict)
    withdrawn: list[WorkerId] = msgspec.field(default_factory=list)
    state_changes: list[StateChange] = msgspec.field(default_factory=list)
    wake_at: datetime | None = None
