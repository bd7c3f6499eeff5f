"""Reports of workers over HTTP: publishes the fact, and waits for the planner's decision."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events, execution_events, frame_events
from noetl_contracts.ids import CommandId
from noetl_contracts.json_values import to_json_value
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import Fact
from noetl_contracts.status import CommandStatus, FrameStatus
from noetl_planner.api.claims import leases
from noetl_planner.api.claims.execution_watch import ExecutionWatch
from noetl_planner.api.claims.leases import Lease
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult
from noetl_storage.arrow import result_values

# Refusals that the planner records when it hears of them; the others it must not hear of.
RECORDED = frozenset({leases.STALE, leases.COMMAND_TERMINAL, leases.FRAME_TERMINAL})
RESULT_KIND = "external"


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of a report: the status that the command or frame has now, by which event."""

    status: str
    event_id: str
    error: ErrorObject | None = None


ReportAnswer = Verdict | ApiError


async def settle_command(
    execution_watch: ExecutionWatch, lease: Lease, fact: Fact, *, pools: tuple[str, ...]
) -> Verdict:
    """Tell how a command ended; raises a 409 when the lease is not the worker's any more."""
    conflict = leases.find_command_conflict(execution_watch.state, lease, pools)
    await _send_report(execution_watch, lease, fact, conflict)
    verdict: ReportAnswer = await execution_watch.wait_until(
        lambda event: _match_command_event(event, lease)
    )
    if isinstance(verdict, ApiError):
        raise verdict
    return verdict


async def settle_frame(
    execution_watch: ExecutionWatch,
    lease: Lease,
    frame_id: str,
    fact: Fact,
    *,
    pools: tuple[str, ...],
) -> Verdict:
    """Tell how a frame ended; raises a 409 when the lease is not the worker's any more."""
    conflict = leases.find_frame_conflict(execution_watch.state, lease, frame_id, pools)
    await _send_report(execution_watch, lease, fact, conflict)
    verdict: ReportAnswer = await execution_watch.wait_until(
        lambda event: _match_frame_event(event, lease, frame_id)
    )
    if isinstance(verdict, ApiError):
        raise verdict
    return verdict


async def _send_report(
    execution_watch: ExecutionWatch, lease: Lease, fact: Fact, conflict: ApiError | None
) -> None:
    """Tell the planner what it may hear, then raise the conflict, if there is one.

    Of refusals it hears those alone that it records. What it does not know is not told to it: a
    report that is made up beforehand would later stand in the way of the true one of that name.
    """
    is_recorded = (
        conflict is not None
        and conflict.code in RECORDED
        and _is_past_attempt(execution_watch, lease)
    )
    if conflict is None or is_recorded:
        kind = str(fact.__struct_config__.tag)
        worker = codec.compute_checksum(lease.worker_id)[:16]
        key = f"{lease.command_id}/{lease.attempt}/{kind}/{worker}"
        await execution_watch.publish_fact(fact, key=key)
    if conflict is not None:
        raise conflict


def _is_past_attempt(execution_watch: ExecutionWatch, lease: Lease) -> bool:
    """Tell whether the history says that this attempt was there and has passed."""
    command_id = CommandId(lease.command_id)
    command_state = execution_watch.state.commands.get(command_id)
    current = (
        execution_watch.state.fenced.get(command_id)
        if command_state is None
        else command_state.attempt
    )
    return current is not None and lease.attempt < current


def _match_command_event(envelope: Envelope | None, lease: Lease) -> ReportAnswer | None:
    match envelope.event if envelope is not None else None:
        case command_events.CommandCompleted(command_id=of) if of == lease.command_id:
            return _build_verdict(envelope, CommandStatus.COMPLETED)
        case command_events.CommandFailed(command_id=of, error=error) if of == lease.command_id:
            return _build_verdict(envelope, CommandStatus.FAILED, error)
        case (
            command_events.CommandReissued(command_id=of)
            | command_events.CommandRejected(command_id=of)
        ):
            return _build_overtaken_error(lease) if of == lease.command_id else None
        case _:
            return _match_cancel_event(envelope, lease)


def _match_frame_event(
    envelope: Envelope | None, lease: Lease, frame_id: str
) -> ReportAnswer | None:
    match envelope.event if envelope is not None else None:
        case frame_events.FrameCommitted(frame_id=of) if of == frame_id:
            return _build_verdict(envelope, FrameStatus.COMPLETED)
        case frame_events.FrameFailed(frame_id=of, error=error) if of == frame_id:
            return _build_verdict(envelope, FrameStatus.FAILED, error)
        case frame_events.FrameAbandoned(frame_id=of, error=error) if of == frame_id:
            return _build_verdict(envelope, FrameStatus.ABANDONED, error)
        case frame_events.FrameCommitRejected(frame_id=of) if of == frame_id:
            return _build_overtaken_error(lease)
        case _:
            return _match_cancel_event(envelope, lease)


def _match_cancel_event(envelope: Envelope | None, lease: Lease) -> ReportAnswer | None:
    match envelope.event if envelope is not None else None:
        case command_events.CommandCancelled(command_id=of, error=error) if of == lease.command_id:
            return _build_verdict(envelope, CommandStatus.CANCELLED, error)
        case _:
            return _match_execution_end(envelope, lease)


def _match_execution_end(envelope: Envelope | None, lease: Lease) -> ApiError | None:
    """Notice the end of the whole execution."""
    match envelope.event if envelope is not None else None:
        case (
            execution_events.PlaybookCompleted()
            | execution_events.PlaybookFailed()
            | execution_events.ExecutionCancelled()
        ):
            return leases.build_refused_report_error(
                leases.COMMAND_TERMINAL, "the execution has ended", lease=lease
            )
        case _:
            return None


def _build_overtaken_error(lease: Lease) -> ApiError:
    return leases.build_refused_report_error(
        leases.STALE, f"attempt {lease.attempt} is over", lease=lease
    )


def _build_verdict(
    envelope: Envelope | None, status: str, error: ErrorObject | None = None
) -> Verdict:
    assert envelope is not None, "an event travels in its envelope"
    return Verdict(status=status, event_id=envelope.event_id, error=error)


async def keep_pipeline_result(services: ApiServices, value: Any, *, task: str) -> ResultEnvelope:
    """Keep a value as the result of a step's pipeline; a large one is stored first."""
    problems.check_depth(value, "the result")
    result = TaskResult(kind=RESULT_KIND, raw=to_json_value(value))
    return await _externalize_result(
        services, PipelineResult(tasks={task: result}, last=task), row_count=None
    )


async def keep_row_results(services: ApiServices, results: list[Any]) -> ResultEnvelope:
    """Keep the results of a frame's rows; large ones are stored first."""
    problems.check_depth(results, "the list of results")
    return await _externalize_result(
        services, LoopResult(results=to_json_value(results)), row_count=len(results)
    )


async def _externalize_result(
    services: ApiServices, result: PipelineResult | LoopResult, *, row_count: int | None
) -> ResultEnvelope:
    return await result_values.build_result_envelope(
        result_values.build_keep(services.payloads, **services.tenant_scope),
        codec.encode_json(result),
        inline=lambda: result_envelope.build_inline_context(result),
        beside=result_envelope.build_reference_context(result, {}),
        row_count=row_count,
    )
