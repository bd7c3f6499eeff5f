"""Pipelines that wait for something else: kept as a payload, let go, and taken up again.

What is kept is all that a pipeline has found out so far. Whoever takes it up goes on inside the
attempt that waited, as if its tool had answered only now.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.ids import FrameId, WorkerId
from noetl_contracts.parking import ChildWait, MessageWait, Resume, Wait
from noetl_contracts.payloads import (
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.task_metrics import MetricsByTask
from noetl_playbook import carried, coercion, forms
from noetl_playbook.envelope import Output
from noetl_playbook.handles import Handle
from noetl_playbook.lookup import MISSING
from noetl_playbook.results import TaskResult
from noetl_playbook.views import ResultView
from noetl_storage import envelopes
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.hands import Hands
from noetl_worker.tools.call import Call, Outcome

PLAYBOOK = "playbook"
EXTERNAL = "external"
CHILD_INPUT_BYTES_MAX = 4 * 1024 * 1024
KINDS = frozenset({PLAYBOOK, EXTERNAL})


def key_of(task: str, *, visit: int, attempt: int, place: str = "") -> str:
    """Name an attempt of a task within its command; `place` tells the rows of a frame apart."""
    key = f"{task}/{visit}/{attempt}"
    return f"{place}/{key}" if place else key


class Walk(Struct, kw_only=True):
    """Where a pipeline stands: the task that it is at, and how often it came by.

    `wait` and `submitted` are those of an `external` task. A walk `is_between_tries` where its task
    is tried again; `tries` are the latest attempts that were, `metrics` what the tasks did so far.
    """

    visits: list[int]
    position: int = 0
    jumps: int = 0
    attempt: int = 0
    is_between_tries: bool = False
    started_at: datetime | None = None
    input: Any = None
    wait: MessageWait | None = None
    submitted: Any = None
    tries: list[FailedTry] = []
    metrics: MetricsByTask = {}


class SavedOutput(Struct, frozen=True, kw_only=True):
    """The attempt that is the current `output`; without `has_data` its tool gave nothing."""

    task: str
    result: TaskResult
    has_data: bool
    attempt: int
    duration_s: float
    started_at: datetime
    worker_id: WorkerId
    kept: ResultEnvelope | None = None


class SavedCollection(Struct, frozen=True, kw_only=True):
    """What a task has collected: a list's beginning in chunks of its own, and the rest.

    It is left out wherever else the pipeline holds it: among the names of results, and in the
    variables `held_in`.
    """

    name: str
    rest: Any
    size_bytes: int
    chunks: list[PayloadRef] = []
    is_truncated: bool = False
    held_in: list[str] = []


class SavedScratch(Struct, frozen=True, kw_only=True):
    """What a pipeline knows; `views` are the variables that hold a task's result.

    What tasks gave that is stored by itself stands in `kept`, and variables that lead to it in
    `kept_views`, with the task. `view_tasks` are the tasks of `views` that leave out what they
    have collected. Pipelines that were parked by an earlier release have `collections` in place of
    `collected`.
    """

    ctx: dict[str, Any]
    patch: dict[str, Any]
    iter: dict[str, Any]
    results: dict[str, TaskResult]
    last: str | None
    previous: TaskResult | None
    variables: dict[str, Any]
    views: dict[str, TaskResult]
    collections: dict[str, Any] = {}
    kept: dict[str, ResultEnvelope] = {}
    kept_views: dict[str, str] = {}
    collected: dict[str, SavedCollection] = {}
    view_tasks: dict[str, str] = {}
    output: SavedOutput | None = None


class Saved(Struct, frozen=True, kw_only=True):
    """A pipeline between two workers; `attempt` is that of its command which kept it."""

    walk: Walk
    scratch: SavedScratch
    attempt: int = 0
    notes: list[str] = []


class WaitingRow(Struct, frozen=True, kw_only=True):
    """A row of a frame that waits; `index` is None for a body that takes the whole frame."""

    index: int | None
    saved: Saved
    wait: Wait


class SavedFrame(Struct, frozen=True, kw_only=True):
    """A frame between two workers: what its rows came to, and those that wait, in order.

    The first of them is what the command waits for; the others begin their waits after it.
    """

    frame_id: FrameId
    waiting: list[WaitingRow]
    next: int
    done: int = 0
    failed: int = 0
    error: ErrorObject | None = None
    patch: dict[str, Any] = {}
    results: list[tuple[int, Any]] = []
    metrics: MetricsByTask = {}


class Resumed(Struct, frozen=True, kw_only=True):
    """A pipeline taken up again, and what its wait has brought."""

    saved: Saved
    status: str
    outcome: Outcome


class Parked(Exception):  # noqa: N818 - it tells the lane to let go, which is no error
    """The pipeline waits: its command ends here until the wait does."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.task)
        self.wait = wait


class FrameParked(Exception):  # noqa: N818 - it tells the lane to let go, which is no error
    """A row of the frame waits, and with it the frame."""

    def __init__(self, saved: SavedFrame) -> None:
        super().__init__(saved.waiting[0].wait.task)
        self.saved = saved


class Halted(Exception):  # noqa: N818 - it tells the lane to let go, which is no error
    """The execution is being cancelled, and what the pipeline had submitted was called off."""


S = TypeVar("S", Saved, SavedFrame)


async def keep(saved: Saved | SavedFrame, hands: Hands) -> PayloadRef:
    """Store a pipeline or a frame, for any worker to take up; raises `ToolFailure`."""
    # Not canonical: the order of the tasks is part of the result.
    data = hands.mask.data(codec.encode(saved))
    return await hands.payloads.store(data, media_type=JSON_MEDIA_TYPE)


async def take_up(resume: Resume, hands: Hands) -> Resumed:
    """Load a pipeline and what its wait has brought; raises `ToolFailure`."""
    saved = await _loaded(resume, Saved, hands)
    return Resumed(saved=saved, status=resume.status, outcome=await _outcome(resume, hands))


async def take_up_frame(resume: Resume, hands: Hands) -> tuple[SavedFrame, Resumed]:
    """Load a frame, and the row of it whose wait has ended; raises `ToolFailure`."""
    saved = await _loaded(resume, SavedFrame, hands)
    outcome = await _outcome(resume, hands)
    first = saved.waiting[0]
    return saved, Resumed(saved=first.saved, status=resume.status, outcome=outcome)


async def _loaded(resume: Resume, kind: type[S], hands: Hands) -> S:
    kept = await hands.payloads.load(resume.ref)
    try:
        return codec.convert(kept, kind)
    except msgspec.ValidationError as problem:
        text = f"the parked work at {resume.ref.uri} cannot be read: {problem}"
        raise ToolFailure(failure("internal", text)) from problem


async def _outcome(resume: Resume, hands: Hands) -> Outcome:
    if resume.error is not None:
        return Outcome(error=resume.error)
    about = {"execution_id": resume.child_execution_id, "status": resume.status}
    if resume.result is None:
        return Outcome(data=about)
    value = await _plain(resume.result, str(resume.child_execution_id), hands)
    if isinstance(value, Mapping) and resume.child_execution_id is not None:
        return Outcome(data={**about, **value})
    return Outcome(data=value)


async def _plain(result: ResultEnvelope, execution_id: str, hands: Hands) -> Any:
    """Give another execution's result as a value of this one."""
    loaded = await envelopes.loaded(hands.payloads.load, result)
    shown = carried.view(
        result, execution_id=execution_id, step="child", run="latest", find=carried.found_in(loaded)
    )
    return forms.plain(shown)


async def child_wait(call: Call, hands: Hands, *, key: str) -> ChildWait:
    """Say which child a `playbook` task wants; raises `ToolFailure`."""
    fields = call.fields
    path = fields.get("path")
    if not isinstance(path, str) or not path.strip("/ "):
        raise _refused(call, "path", path, "the path of a registered playbook")
    request = {**_mapping(call, "workload"), **_mapping(call, "payload"), **call.input}
    if call.site.keychain is not None:
        # The child's request is an event: its secrets travel sealed and open in its own tasks.
        request = call.site.keychain.kept_safe(request, is_secret=False)
    data = hands.mask.data(codec.encode(request))
    if len(data) > CHILD_INPUT_BYTES_MAX:
        text = (
            f"task '{call.task}': the inputs of the child take {len(data)} bytes, "
            f"{CHILD_INPUT_BYTES_MAX} is the limit: hand over a reference or the name of a table"
        )
        raise ToolFailure(failure("payload_too_large", text))
    is_small = len(data) <= RESULT_INLINE_BYTES_MAX
    return_step = fields.get("return_step")
    return ChildWait(
        key=key,
        task=call.task,
        path=hands.mask.text(path.strip("/ ")),
        version=_version(call),
        workload=codec.decode(data) if is_small else {},
        workload_ref=None
        if is_small
        else await hands.payloads.store(data, media_type=JSON_MEDIA_TYPE),
        return_step=None if return_step is None else hands.mask.text(str(return_step)),
        is_awaited=_is_awaited(call),
        timeout_s=call.timeout.total,
    )


def output_of(shown: SavedOutput, view: ResultView | Handle) -> Output:
    """Return the envelope of an attempt, also of one that another worker made."""
    meta = {
        "attempt": shown.attempt,
        "attempts_total": shown.attempt,
        "duration_ms": shown.duration_s * 1000,
        "started_at": shown.started_at,
        "worker_id": shown.worker_id,
    }
    result = shown.result
    if isinstance(view, Handle):
        return Output(view, kind=result.kind, meta=meta)
    data = view if shown.has_data else MISSING
    return Output(data, kind=result.kind, error=result.error, meta=meta)


def _mapping(call: Call, field: str) -> dict[str, Any]:
    found = call.fields.get(field) or {}
    if not isinstance(found, dict):
        raise _refused(call, field, found, "a mapping")
    return found


def _is_awaited(call: Call) -> bool:
    given = call.fields.get("wait")
    found = True if given is None else coercion.boolean(given)
    if found is None:
        raise _refused(call, "wait", given, "true or false")
    return found


def _version(call: Call) -> int | None:
    found = call.fields.get("version")
    if found is None or found == "latest":
        return None
    version = coercion.integer(found)
    if version is None or version < 1:
        raise _refused(call, "version", found, "a version number or 'latest'")
    return version


def _refused(call: Call, field: str, found: Any, wanted: str) -> ToolFailure:
    text = f"task '{call.task}', field '{field}': {found!r} is not {wanted}"
    return ToolFailure(failure("validation", text))


def unavailable(kind: str) -> ErrorObject:
    """Say that this frame's rows cannot wait."""
    return failure(
        "unsupported_tool",
        f"kind '{kind}' cannot wait in a frame with 'transaction: true', nor in a loop with "
        "'exec: local': leave that out, or use mode 'parallel' or 'sequential'",
    )
