"""How a worker over HTTP ends what it claimed: the planner's own verdict is the answer."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command, execution, frame
from noetl_contracts.facts import Fact
from noetl_contracts.ids import CommandId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.plain import plain
from noetl_contracts.status import CommandStatus, FrameStatus
from noetl_planner.http import leases, problems
from noetl_planner.http.leases import Lease
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_planner.http.unfolding import Unfolding
from noetl_playbook import carried
from noetl_playbook.results import LoopResult, PipelineResult, TaskResult
from noetl_storage import envelopes

# Refusals that the planner records when it hears of them; the others it must not hear of.
RECORDED = frozenset({leases.STALE, leases.COMMAND_TERMINAL, leases.FRAME_TERMINAL})
RESULT_KIND = "external"


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of a report: the status that the command or frame has now, by which event."""

    status: str
    event_id: str
    error: ErrorObject | None = None


Found = Verdict | ApiError


async def of_command(
    known: Unfolding, lease: Lease, fact: Fact, *, pools: tuple[str, ...]
) -> Verdict:
    """Tell how a command ended; raises a 409 when the lease is not the worker's any more."""
    conflict = leases.conflict_of_command(known.state, lease, pools)
    await _tell(known, lease, fact, conflict)
    found: Found = await known.until(lambda event: _about_command(event, lease))
    if isinstance(found, ApiError):
        raise found
    return found


async def of_frame(
    known: Unfolding, lease: Lease, frame_id: str, fact: Fact, *, pools: tuple[str, ...]
) -> Verdict:
    """Tell how a frame ended; raises a 409 when the lease is not the worker's any more."""
    conflict = leases.conflict_of_frame(known.state, lease, frame_id, pools)
    await _tell(known, lease, fact, conflict)
    found: Found = await known.until(lambda event: _about_frame(event, lease, frame_id))
    if isinstance(found, ApiError):
        raise found
    return found


async def _tell(known: Unfolding, lease: Lease, fact: Fact, conflict: ApiError | None) -> None:
    """Tell the planner what it may hear, then raise the conflict, if there is one.

    Of refusals it hears those alone that it records. What it does not know is not told to it: a
    report that is made up beforehand would later stand in the way of the true one of that name.
    """
    is_recorded = conflict is not None and conflict.code in RECORDED and _is_over(known, lease)
    if conflict is None or is_recorded:
        kind = str(fact.__struct_config__.tag)
        key = f"{lease.command_id}/{lease.attempt}/{kind}/{codec.checksum(lease.worker_id)[:16]}"
        await known.tell(fact, key=key)
    if conflict is not None:
        raise conflict


def _is_over(known: Unfolding, lease: Lease) -> bool:
    """Tell whether the history says that this attempt was there and has passed."""
    command_id = CommandId(lease.command_id)
    live = known.state.commands.get(command_id)
    current = known.state.fenced.get(command_id) if live is None else live.attempt
    return current is not None and lease.attempt < current


def _about_command(envelope: Envelope | None, lease: Lease) -> Found | None:
    match envelope.event if envelope is not None else None:
        case command.CommandCompleted(command_id=of) if of == lease.command_id:
            return _verdict(envelope, CommandStatus.COMPLETED)
        case command.CommandFailed(command_id=of, error=error) if of == lease.command_id:
            return _verdict(envelope, CommandStatus.FAILED, error)
        case command.CommandReissued(command_id=of) | command.CommandRejected(command_id=of):
            return _overtaken(lease) if of == lease.command_id else None
        case _:
            return _called_off(envelope, lease)


def _about_frame(envelope: Envelope | None, lease: Lease, frame_id: str) -> Found | None:
    match envelope.event if envelope is not None else None:
        case frame.FrameCommitted(frame_id=of) if of == frame_id:
            return _verdict(envelope, FrameStatus.COMPLETED)
        case frame.FrameFailed(frame_id=of, error=error) if of == frame_id:
            return _verdict(envelope, FrameStatus.FAILED, error)
        case frame.FrameAbandoned(frame_id=of, error=error) if of == frame_id:
            return _verdict(envelope, FrameStatus.ABANDONED, error)
        case frame.FrameCommitRejected(frame_id=of) if of == frame_id:
            return _overtaken(lease)
        case _:
            return _called_off(envelope, lease)


def _called_off(envelope: Envelope | None, lease: Lease) -> Found | None:
    match envelope.event if envelope is not None else None:
        case command.CommandCancelled(command_id=of, error=error) if of == lease.command_id:
            return _verdict(envelope, CommandStatus.CANCELLED, error)
        case _:
            return _halted(envelope, lease)


def _halted(envelope: Envelope | None, lease: Lease) -> ApiError | None:
    """Notice the end of the whole execution."""
    match envelope.event if envelope is not None else None:
        case (
            execution.PlaybookCompleted()
            | execution.PlaybookFailed()
            | execution.ExecutionCancelled()
        ):
            return leases.ended(leases.COMMAND_TERMINAL, "the execution has ended", lease=lease)
        case _:
            return None


def _overtaken(lease: Lease) -> ApiError:
    return leases.ended(leases.STALE, f"attempt {lease.attempt} is over", lease=lease)


def _verdict(envelope: Envelope | None, status: str, error: ErrorObject | None = None) -> Verdict:
    assert envelope is not None, "an event travels in its envelope"
    return Verdict(status=status, event_id=envelope.event_id, error=error)


async def keep_result(services: ApiServices, value: Any, *, task: str) -> ResultEnvelope:
    """Keep a value as the result of a step's pipeline; a large one is stored first."""
    problems.check_depth(value, "the result")
    result = TaskResult(kind=RESULT_KIND, raw=plain(value))
    return await _kept(services, PipelineResult(tasks={task: result}, last=task), row_count=None)


async def keep_list(services: ApiServices, results: list[Any]) -> ResultEnvelope:
    """Keep the results of a frame's rows; large ones are stored first."""
    problems.check_depth(results, "the list of results")
    return await _kept(services, LoopResult(results=plain(results)), row_count=len(results))


async def _kept(
    services: ApiServices, result: PipelineResult | LoopResult, *, row_count: int | None
) -> ResultEnvelope:
    return await envelopes.externalize(
        envelopes.keeping(services.payloads, **services.place),
        codec.encode(result),
        inline=lambda: carried.inline(result),
        beside=carried.referenced(result, {}),
        row_count=row_count,
    )
