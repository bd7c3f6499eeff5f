"""The intake of facts and requests: decoded, checked, and sorted by execution, or refused."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, structs

from noetl_contracts import ids, subjects
from noetl_contracts.commands.waits import TIMEOUT_S_MAX
from noetl_contracts.errors import MalformedMessage, Permanent, ResultMalformed, SubjectError
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.ledger.envelope import is_correlation
from noetl_contracts.ledger.records import Request, SettledRequest
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import (
    ExecutionRequested,
    FactBatch,
    ItemsCollected,
    PartsCollected,
)
from noetl_contracts.subjects import Reporter
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Delivery
from noetl_planner.facts import report_checks
from noetl_planner.facts.report_checks import ReportedBatch, ReportRefused
from noetl_planner.identity.served_tenants import ServedTenants
from noetl_playbook.views import result_envelope

# Numbers that JSON's other readers and every column hold.
NUMBER_MAX = 2**53
_NESTED_MAX = 4
# A result is held by its task, its pipeline and its context.
_LEVELS_MAX = DEPTH_MAX + 16
_IDENTITIES = frozenset(
    {
        *("command_id", "execution_id", "child_execution_id", "parent_execution_id"),
        *("stage_id", "frame_id", "parent_frame_id", "run_id"),
    }
)
# A decision that keeps failing by a defect of ours is a person's to look at after so many tries.
DEFECTS_MAX = 20
# What no delivery brings again, as a timer, is taken again after so long.
OWN_DELAY_S = 2.0
_DELAY_S = 0.2
_DELAYS_MAX = 50
EVERY_TENANT = ServedTenants()
_Owner = tuple[ExecutionId, TenantId, OrganizationId]


def check_fact(fact: Struct) -> None:
    """Raise `MalformedMessage` or `ResultMalformed` for a fact that no decision may use."""
    if isinstance(fact, ItemsCollected | PartsCollected):
        # Said from elsewhere they would end a loop whose work goes on.
        raise MalformedMessage(f"{type(fact).__name__} is the planner's own to say")
    _check_fields(fact, type(fact).__name__, nested=0)


def _check_fields(value: Struct, parent_place: str, *, nested: int) -> None:
    """Look at a Struct's own fields, and at those of what it holds."""
    for name in value.__struct_fields__:
        field: Any = getattr(value, name)
        if field is None:
            continue
        place = f"{parent_place}.{name}"
        if name in _IDENTITIES and not ids.is_identity(field):
            raise MalformedMessage(f"{place} is {field[:80]!r}, which is no identity")
        # Versions of drafts are below zero.
        least = -NUMBER_MAX if name == "version" else 0
        if type(field) is int and not least <= field <= NUMBER_MAX:
            raise MalformedMessage(f"{place} is out of bounds")
        if name == "correlation_id" and not is_correlation(field):
            raise MalformedMessage(f"{place} is no name of a flow")
        if name == "timeout_s" and not 0 <= field <= TIMEOUT_S_MAX:
            raise MalformedMessage(f"{place} is no number of seconds that anybody waits")
        _check_value(field, place, nested=nested)


def _check_value(field: Any, place: str, *, nested: int) -> None:
    """Look into a value: free-form documents are read with their own limits."""
    if isinstance(field, Struct) and nested < _NESTED_MAX:
        _check_fields(field, place, nested=nested + 1)
    if isinstance(field, ResultEnvelope):
        _check_result(field, place)
    if isinstance(field, dict) and is_nested_deeper(field, _LEVELS_MAX):
        raise MalformedMessage(f"{place} is nested deeper than {_LEVELS_MAX} levels")
    if isinstance(field, list):
        for item in field:
            _check_value(item, place, nested=nested)


def _check_result(result: ResultEnvelope, place: str) -> None:
    try:
        result_envelope.check_result_envelope(result)
    except ResultMalformed as failure:
        raise ResultMalformed(f"{place}: {failure}") from failure


class RefusedDelivery(Struct, frozen=True, kw_only=True):
    """A delivery that nothing can be decided from, or not from all of it."""

    delivery: Delivery
    reason: Permanent


class ExecutionWork(Struct, kw_only=True):
    """Facts of one execution in this turn, and the deliveries that brought them.

    `in_part` are further deliveries some of whose facts were refused: they are buried, and not
    acknowledged, when the others have been committed. `later_batches` are facts of the same
    deliveries that are decided on afterwards, before any of them is settled. `own_batches` are
    batches of this planner that no delivery brings again.
    """

    batches: list[FactBatch]
    deliveries: list[Delivery]
    own_batches: list[FactBatch] = msgspec.field(default_factory=list)
    in_part: list[RefusedDelivery] = msgspec.field(default_factory=list)
    later_batches: list[FactBatch] = msgspec.field(default_factory=list)

    def list_deliveries(self) -> list[Delivery]:
        """List what is to be settled, however that is."""
        return [*self.deliveries, *(refused_delivery.delivery for refused_delivery in self.in_part)]


def sort_by_execution(
    fact_batches: Iterable[FactBatch],
    deliveries: Iterable[Delivery],
    *,
    shard: int,
    shard_count: int,
    served: ServedTenants = EVERY_TENANT,
) -> tuple[list[ExecutionWork], list[RefusedDelivery]]:
    """Gather facts by execution and owner, in order; put aside what does not belong here."""
    grouped: dict[_Owner, ExecutionWork] = {}
    refused: list[RefusedDelivery] = []
    for batch in fact_batches:
        execution_work = _get_work(grouped, batch)
        execution_work.batches.append(batch)
        execution_work.own_batches.append(batch)
    for delivery in deliveries:
        try:
            batch, faults = read_delivery(delivery, shard=shard, shard_count=shard_count)
            served.check_served(batch.tenant_id)
        except MalformedMessage as reason:
            refused.append(RefusedDelivery(delivery=delivery, reason=reason))
            continue
        refused_delivery = RefusedDelivery(delivery=delivery, reason=faults[0]) if faults else None
        if refused_delivery is not None and not batch.facts:
            refused.append(refused_delivery)
            continue
        execution_work = _get_work(grouped, batch)
        execution_work.batches.append(batch)
        if refused_delivery is None:
            execution_work.deliveries.append(delivery)
        else:
            execution_work.in_part.append(refused_delivery)
    return list(grouped.values()), refused


def read_delivery(
    delivery: Delivery, *, shard: int, shard_count: int
) -> tuple[FactBatch, list[Permanent]]:
    """Decode a delivery: what of it can be decided, and what is wrong with its other facts.

    Raises `MalformedMessage` for what is no batch at all, or one of another shard or tenant.
    """
    if len(delivery.data) > MESSAGE_BYTES_MAX:
        raise MalformedMessage(
            f"{len(delivery.data)} bytes exceed the {MESSAGE_BYTES_MAX} of a message"
        )
    batch, misfits = facts.decode_valid_facts(delivery.data)
    if not ids.is_identity(batch.execution_id):
        raise MalformedMessage(f"{batch.execution_id[:80]!r} is no execution's id")
    belongs = ids.find_shard(batch.execution_id, shard_count)
    if belongs != shard:
        raise MalformedMessage(
            f"execution {batch.execution_id} belongs to shard {belongs}, and this is {shard}: "
            "all processes must have the same SHARD_COUNT"
        )
    reporter = _check_subject_owner(delivery, batch)
    if reporter is not None:
        batch = _build_reported_batch(delivery, batch, reporter)
    faults: list[Permanent] = [*misfits]
    admitted = []
    for fact in batch.facts:
        try:
            check_fact(fact)
            if reporter is not None:
                report_checks.check_report(fact, reporter)
        except (MalformedMessage, ResultMalformed, ReportRefused) as fault:
            faults.append(fault)
            continue
        admitted.append(fact)
    return (structs.replace(batch, facts=admitted) if faults else batch), faults


def _build_reported_batch(
    delivery: Delivery, batch: FactBatch, reporter: Reporter
) -> ReportedBatch:
    if batch.request_id is not None:
        # What was asked for under that name would count as done.
        raise MalformedMessage(f"worker {reporter.identity!r} settles a request")
    if batch.actor is not UNSET:
        # The history would say that somebody else did it.
        raise MalformedMessage(f"worker {reporter.identity!r} names an actor")
    fields = {name: getattr(batch, name) for name in batch.__struct_fields__}
    return ReportedBatch(**fields, reporter=reporter, delivery=delivery)


def bury_reports(work: ExecutionWork, refused: Sequence[RefusedDelivery]) -> ExecutionWork:
    """Return the work with the deliveries that brought refused reports among those to bury."""
    refused_deliveries = {id(item.delivery): item for item in refused}
    buried = {id(item.delivery) for item in work.in_part}
    return structs.replace(
        work,
        deliveries=[
            delivery for delivery in work.deliveries if id(delivery) not in refused_deliveries
        ],
        in_part=[
            *work.in_part,
            *(item for key, item in refused_deliveries.items() if key not in buried),
        ],
    )


def halve_work(work: ExecutionWork) -> ExecutionWork | None:
    """Return work on the first half of the facts, the others its rest; None for a single fact."""
    singles = [fact_batch for batch in work.batches for fact_batch in _split_batch(batch)]
    if len(singles) < 2:  # noqa: PLR2004 - one fact has no half
        return None
    half = len(singles) // 2
    return structs.replace(
        work, batches=singles[:half], later_batches=[*singles[half:], *work.later_batches]
    )


def find_remaining_work(work: ExecutionWork) -> ExecutionWork | None:
    """Return what is to be decided on once the work is committed."""
    return (
        structs.replace(work, batches=work.later_batches, later_batches=[])
        if work.later_batches
        else None
    )


def decode_request(request: Request) -> ExecutionWork:
    """Return the work of a request that came by no message."""
    return ExecutionWork(batches=[facts.decode_fact_batch(request.data)], deliveries=[])


def select_request_batch(batches: Iterable[FactBatch]) -> FactBatch:
    """Return the batch that asks for the execution, or else the first."""
    listed = list(batches)
    for batch in listed:
        if any(isinstance(fact, ExecutionRequested) for fact in batch.facts):
            return batch
    return listed[0]


def list_settled_requests(batches: Iterable[FactBatch]) -> Iterator[SettledRequest]:
    """List the requests that batches bring, each as one of the batch's own execution."""
    for batch in batches:
        if batch.request_id is not None:
            yield SettledRequest(
                request_id=batch.request_id,
                execution_id=batch.execution_id,
                tenant_id=batch.tenant_id,
                organization_id=batch.organization_id,
            )


def is_first_request(work: ExecutionWork) -> bool:
    """Tell whether an execution is asked for, as far as can be told, for the first time."""
    fact = work.batches[0].facts[:1]
    return (
        bool(fact)
        and isinstance(fact[0], ExecutionRequested)
        and all(delivery.delivery_count == 1 for delivery in work.list_deliveries())
    )


def compute_redelivery_delay_s(delivery: Delivery, place: int = 0) -> float:
    """Say when a delivery comes again: later each time, and apart from those that it came with."""
    return _DELAY_S * (min(delivery.delivery_count, _DELAYS_MAX) + place)


def _check_subject_owner(delivery: Delivery, batch: FactBatch) -> Reporter | None:
    """Hold a batch against its subject, which the server's permissions may have checked.

    Return the worker that the subject names.
    """
    try:
        about = subjects.parse_shard_subject(delivery.subject)
    except SubjectError as problem:
        raise MalformedMessage(str(problem)) from problem
    if (about.tenant_id, about.organization_id) != (batch.tenant_id, batch.organization_id):
        raise MalformedMessage(
            f"facts of {batch.tenant_id[:80]!r}/{batch.organization_id[:80]!r} "
            f"under the subject of {about.tenant_id!r}/{about.organization_id!r}"
        )
    return about.reporter


def _split_batch(batch: FactBatch) -> list[FactBatch]:
    """Return a batch for each fact; the last settles the request that brought them."""
    *before, last = [structs.replace(batch, facts=[fact]) for fact in batch.facts] or [batch]
    return [*(structs.replace(fact_batch, request_id=None) for fact_batch in before), last]


def _get_work(grouped: dict[_Owner, ExecutionWork], batch: FactBatch) -> ExecutionWork:
    owner = batch.execution_id, batch.tenant_id, batch.organization_id
    return grouped.setdefault(owner, ExecutionWork(batches=[], deliveries=[]))
