"""Starts executions from messages of triggers, once a message, then settles the message.

Every planner takes part; each message is handed to one of them, and comes again to any when that
one dies. The request's idempotency key is the message's own identity, else its place in the stream.
"""

import asyncio
from typing import Any

import msgspec
import structlog
from msgspec import structs

from noetl_chassis import loop
from noetl_chassis.observability import instruments, names, tracing
from noetl_chassis.observability.tracing import SpanKind
from noetl_contracts import codec
from noetl_contracts.errors import NoetlError, Retryable
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import ActorKind, Via
from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests import triggers
from noetl_contracts.requests.triggers import Trigger
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Consumer, DeadLetters, Delivery
from noetl_planner.api.executions import start_requests
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.quota_board import SuspendedTenantError
from noetl_planner.api.http.service_groups import PlaybookServices
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import views
from noetl_planner.api.triggers.message_waits import MessageWaits, PlacesTaken
from noetl_playbook.templates.expressions import TemplateError
from noetl_playbook.views.payload_handle import PayloadNeeded

TRIGGERS_MAX = 1000
MESSAGES_MAX = 16
WAIT_S = 1.0
NAK_DELAY_S = 2.0
STARTED, REPEATED, REFUSED, FILTERED = "started", "repeated", "refused", "filtered"
WAITED, SUSPENDED = "waited", "suspended"
# The place of an execution that was not asked for by then is free; a message comes again before.
UNASKED_S = 600.0
_KEY_CHARACTERS_MAX = 200

log = structlog.get_logger(__name__)


class TriggerListener:
    """Takes messages for as long as its planner runs."""

    def __init__(
        self, services: ApiServices, *, consumer: Consumer, dead_letters: DeadLetters
    ) -> None:
        self._services = services
        self._consumer = consumer
        self._dead_letters = dead_letters
        self._waits = MessageWaits(services.clock)

    async def run_until_stopped(self, stop: asyncio.Event) -> None:
        """Take messages until told to stop."""
        try:
            await loop.run_on_batches(
                self._consumer,
                self.take_deliveries,
                stop=stop,
                messages_max=MESSAGES_MAX,
                wait_s=WAIT_S,
                name="triggers",
            )
        finally:
            await self._consumer.close()

    async def take_deliveries(self, deliveries: list[Delivery]) -> None:
        """Start what each message starts; what cannot start anything becomes a dead letter."""
        for delivery in deliveries:
            await self._take_in_span(delivery)

    async def _take_in_span(self, delivery: Delivery) -> None:
        # The message begins a unit of work: its trace is a new one, linked to the sender's.
        with tracing.start_recorded_span(
            names.SPAN_TRIGGER,
            kind=SpanKind.CONSUMER,
            links=(delivery.traceparent,),
            attributes={
                names.ATTR_SYSTEM: names.SYSTEM_NATS,
                names.ATTR_OPERATION: names.OPERATION_PROCESS,
            },
        ):
            await self._start_delivery(delivery)

    async def _start_delivery(self, delivery: Delivery) -> None:
        if self._waits.is_full(delivery.subject):
            await delivery.nak(self._waits.plan_return_s(delivery.subject))
            return
        try:
            accepted = await start_from_message(self._services, delivery)
        except (PlacesTaken, SuspendedTenantError) as full:
            is_suspended = isinstance(full, SuspendedTenantError)
            self._count_outcome(SUSPENDED if is_suspended else WAITED)
            log.debug("message not accepted yet", subject=delivery.subject, reason=str(full))
            self._waits.note_full(delivery.subject)
            await delivery.nak(self._waits.plan_return_s(delivery.subject))
            return
        except Retryable as failure:
            log.warning("message not accepted", subject=delivery.subject, reason=str(failure))
            await delivery.nak(NAK_DELAY_S)
            return
        except (ApiError, NoetlError) as failure:
            self._count_outcome(REFUSED)
            log.warning("message rejected", subject=delivery.subject, reason=str(failure))
            await self._dead_letters.bury_delivery(
                delivery,
                stream=topology.TRIGGERS,
                consumer=topology.TRIGGER_CONSUMER,
                reason=str(failure),
            )
            return
        if accepted is None:
            self._count_outcome(FILTERED)
        else:
            self._count_outcome(REPEATED if accepted.deduplicated else STARTED)
        await delivery.ack()

    def _count_outcome(self, outcome: str) -> None:
        instruments.add_to_counter(names.TRIGGER_MESSAGES, labels={names.OUTCOME: outcome})


async def start_from_message(services: ApiServices, delivery: Delivery) -> views.Accepted | None:
    """Keep the request of a message's execution; None for one that the filter leaves out.

    Raises an `ApiError` for what starts nothing, and `PlacesTaken` or `SuspendedTenantError` for
    what has to wait.
    """
    source = triggers.parse_trigger_subject(delivery.subject)
    if source is None:
        raise problems.build_bad_request_error(
            f"{delivery.subject[:200]!r} names no tenant, organization and rest"
        )
    # The message says whose it is; the planner serves every tenant whose messages it gets.
    services = structs.replace(
        services, tenant_id=source.tenant_id, organization_id=source.organization_id
    )
    trigger = await _get_trigger(services, source.subject)
    services = structs.replace(
        services,
        acting=actors.build_caused_actor(
            ActorKind.TRIGGER, Via.TRIGGER, trigger.name, trigger.name, trigger.actor
        ),
    )
    await services.check_author(trigger.actor, trigger.path, f"trigger {trigger.name!r}")
    if len(delivery.data) > trigger.body_bytes_max:
        raise problems.build_request_too_large_error(
            f"the message takes {len(delivery.data)} bytes; "
            f"trigger {trigger.name!r} takes {trigger.body_bytes_max}"
        )
    names = {
        "body": _decode_message(delivery.data),
        "subject": source.subject,
        "message_id": delivery.message_id,
    }
    if not await _is_wanted_message(services.playbooks, trigger, names):
        return None
    inputs = await render_message_workload(services.playbooks, trigger, names)
    key = build_message_key(delivery)
    if trigger.max_in_flight is None:
        return await _start_playbook(services, trigger, inputs, key=key, execution_id=None)
    return await _start_in_place(services, trigger, inputs, key=key)


async def _start_in_place(
    services: ApiServices, trigger: Trigger, inputs: dict[str, Any], *, key: str
) -> views.Accepted:
    """Start an execution in one of the trigger's places; raises `PlacesTaken`.

    A planner that dies in between leaves the place to the message, which comes again.
    """
    execution_id = await services.registry.triggers.claim_place(
        trigger, key, ExecutionId(services.mint()), unasked_s=UNASKED_S
    )
    if execution_id is None:
        raise PlacesTaken(f"{trigger.max_in_flight} executions of trigger {trigger.name!r} run")
    try:
        accepted = await _start_playbook(
            services, trigger, inputs, key=key, execution_id=execution_id
        )
    except Retryable:
        raise
    except (ApiError, NoetlError):
        await services.registry.triggers.release_place(trigger, key)
        raise
    if accepted.execution_id != execution_id:
        # The message started an execution before, whose place was given back.
        await services.registry.triggers.release_place(trigger, key)
    return accepted


async def _start_playbook(
    services: ApiServices,
    trigger: Trigger,
    inputs: dict[str, Any],
    *,
    key: str,
    execution_id: ExecutionId | None,
) -> views.Accepted:
    return await start_requests.start_playbook(
        services,
        trigger.path,
        trigger.version,
        inputs,
        asked_by=f"{triggers.ASKER}{trigger.name}",
        key=key,
        has_free_names=not trigger.inputs,
        execution_id=execution_id,
    )


def build_message_key(delivery: Delivery) -> str:
    """Name a message for good: handling it twice is handling it once."""
    message_id = delivery.message_id
    if not message_id:
        return f"message/{delivery.stream_sequence}"
    key = f"message/{delivery.subject}/{message_id}"
    return key if len(key) <= _KEY_CHARACTERS_MAX else f"message/{codec.digest_hex(key.encode())}"


async def _is_wanted_message(
    playbooks: PlaybookServices, trigger: Trigger, names: dict[str, Any]
) -> bool:
    """Judge a message by the filter; raises an `ApiError` when the filter does not fit it."""
    if trigger.filter is None:
        return True
    try:
        return await playbooks.render_processes.evaluate_condition(trigger.filter, names)
    except (TemplateError, PayloadNeeded) as error:
        raise problems.build_bad_request_error(
            f"the trigger's filter does not fit this message: {error}"
        ) from error


async def render_message_workload(
    playbooks: PlaybookServices, trigger: Trigger, names: dict[str, Any]
) -> dict[str, Any]:
    """Make the workload of a message; raises an `ApiError` when a template does not fit it."""
    if not trigger.inputs:
        body = names["body"]
        return body if isinstance(body, dict) else {"body": body}
    try:
        rendered = await playbooks.render_processes.render_inputs(trigger.inputs, names)
    except (TemplateError, PayloadNeeded) as error:
        raise problems.build_bad_request_error(
            f"the trigger's inputs do not fit this message: {error}"
        ) from error
    return rendered if isinstance(rendered, dict) else {"body": rendered}


async def _get_trigger(services: ApiServices, subject: str) -> Trigger:
    all_triggers = await services.registry.triggers.list_triggers(
        triggers_max=TRIGGERS_MAX, **services.tenant_scope
    )
    matching = [
        trigger for trigger in all_triggers if triggers.matches_subject(trigger.subject, subject)
    ]
    enabled_trigger = next((item for item in matching if item.is_enabled), None)
    if enabled_trigger is not None:
        return enabled_trigger
    if matching:
        raise problems.build_bad_request_error(f"trigger {matching[0].name!r} is disabled")
    raise problems.build_not_found_error(f"no trigger takes messages of {subject[:200]!r}")


def _decode_message(data: bytes) -> Any:
    if not data:
        return {}
    try:
        return codec.decode_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise problems.build_bad_request_error(f"the message is not JSON: {error}") from error
