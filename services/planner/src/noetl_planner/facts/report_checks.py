"""Which facts the planner takes from a worker: reports on what that worker holds, and no requests.

The broker lets a worker publish only under a subject that names its pool and its identity. What
services publish, and what the claim API has checked itself, names no worker and is not looked at
here.
"""

from datetime import datetime
from enum import StrEnum

from noetl_contracts import subjects
from noetl_contracts.errors import Permanent
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact, FactBatch
from noetl_contracts.subjects import Reporter
from noetl_messaging.streams.ports import Delivery
from noetl_replay.state import CommandState, ExecutionState

REPORTS = (
    facts.CommandStarted
    | facts.CommandHeartbeat
    | facts.CommandCompleted
    | facts.CommandFailed
    | facts.CommandLost
    | facts.CommandStopped
    | facts.ChunkEmitted
    | facts.CommandParked
    | facts.ItemsReturned
    | facts.FrameOpened
    | facts.FrameClosed
    | facts.FilesChanged
    | facts.SlotDry
)
# A holder reports every third part of its lease: after this part without a report others may say
# that it is lost. JetStream hands a command to another worker after a whole one.
SILENT_SHARE = 0.5


class ReportFault(StrEnum):
    """Why a report is refused: the label of the metric."""

    REQUEST = "request"
    NAME = "name"
    POOL = "pool"
    HOLDER = "holder"


class ReportRefused(Permanent):
    """A worker reported what it may not; the message names the worker."""

    def __init__(self, fault: ReportFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class ReportedBatch(FactBatch, frozen=True, kw_only=True):
    """Facts with the worker that the broker let publish them, and the delivery that had them."""

    reporter: Reporter
    delivery: Delivery


def check_report(fact: Fact, reporter: Reporter) -> None:
    """Raise `ReportRefused` for a request, and for a report in another worker's name."""
    if not isinstance(fact, REPORTS):
        raise ReportRefused(
            ReportFault.REQUEST,
            f"{_name_reporter(reporter)} sent {type(fact).__name__}, which is a service's to ask",
        )
    worker_id = getattr(fact, "worker_id", None)
    if worker_id is not None and subjects.find_identity(worker_id) != reporter.identity:
        raise ReportRefused(
            ReportFault.NAME,
            f"{_name_reporter(reporter)} sent {type(fact).__name__} in the name of "
            f"{worker_id[:80]!r}",
        )


def check_holder(
    state: ExecutionState, fact: Fact, reporter: Reporter, *, now: datetime, lease_s: float
) -> bool:
    """Tell whether a report is to be decided on; raises `ReportRefused` for a forged one.

    Reports on attempts that are over are decided on: the history says that they came late. A loss
    that another worker reports too early is left out, as the holder is heard; a change of files,
    like anything else that comes late.
    """
    assert isinstance(fact, REPORTS), "requests are refused before"
    command_state = state.commands.get(fact.command_id)
    if command_state is None or command_state.attempt != fact.attempt:
        return not isinstance(fact, facts.FilesChanged)
    if command_state.pool != reporter.pool:
        raise _build_refusal(
            ReportFault.POOL, fact, reporter, f"a command of pool {command_state.pool!r}"
        )
    if command_state.worker_id is None:
        return _may_begin(state, command_state, fact, reporter)
    if _is_from_holder(command_state, fact, reporter):
        return True
    if isinstance(fact, facts.CommandLost):
        silent_s = (now - command_state.heard_at).total_seconds()
        return silent_s >= lease_s * SILENT_SHARE
    raise _build_refusal(
        ReportFault.HOLDER, fact, reporter, f"what worker {command_state.worker_id!r} holds"
    )


def _is_from_holder(command_state: CommandState, fact: Fact, reporter: Reporter) -> bool:
    holder = command_state.worker_id or ""
    worker_id = getattr(fact, "worker_id", holder)
    return worker_id == holder and subjects.find_identity(holder) == reporter.identity


def _may_begin(
    state: ExecutionState, command_state: CommandState, fact: Fact, reporter: Reporter
) -> bool:
    """Tell whether a worker may be the first to report; an offered command has one that may."""
    target = command_state.target
    if target is None or command_state.command_id not in state.offered:
        return True
    if subjects.find_identity(target) == reporter.identity:
        return True
    raise _build_refusal(ReportFault.HOLDER, fact, reporter, f"what worker {target!r} is offered")


def _build_refusal(fault: ReportFault, fact: Fact, reporter: Reporter, topic: str) -> ReportRefused:
    return ReportRefused(
        fault, f"{_name_reporter(reporter)} sent {type(fact).__name__} about {topic}"
    )


def _name_reporter(reporter: Reporter) -> str:
    return f"worker {reporter.identity!r} of pool {reporter.pool!r}"
