"""Pipelines that wait for something else: kept as a payload, let go, and taken up again.

The stored state is everything that the pipeline has computed so far. The worker that resumes it
continues inside the attempt that waited, as if its tool had returned only now.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.commands.waits import ChildWait, MessageWait, Resume, Wait
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.ids import FrameId, WorkerId
from noetl_contracts.payloads import (
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    PayloadRef,
    ResultEnvelope,
)
from noetl_playbook.model import coercion
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.lookup import MISSING
from noetl_playbook.views import result_envelope
from noetl_playbook.views.output_view import OutputView
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_playbook.views.result_view import ResultView
from noetl_playbook.views.results import TaskResult
from noetl_storage.arrow import result_values
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.cursor_values import CursorReading
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.calls.call import Call, Outcome

PLAYBOOK = "playbook"
EXTERNAL = "external"
CHILD_INPUT_BYTES_MAX = 4 * 1024 * 1024
KINDS = frozenset({PLAYBOOK, EXTERNAL})


def build_wait_key(task: str, *, visit: int, attempt: int, place: str = "") -> str:
    """Name an attempt of a task within its command; `place` tells the rows of a frame apart."""
    key = f"{task}/{visit}/{attempt}"
    return f"{place}/{key}" if place else key


class PipelinePosition(Struct, kw_only=True):
    """Where a pipeline stands: the task that it is at, and how often it came by.

    `wait` and `submitted` are those of an `external` task. A walk `is_between_tries` where its task
    is tried again; `tries` are the latest attempts that were, `metrics` what the tasks did so far.
    `read_now` is how far visit `read_visit` has read increments, `read_before` what came before it.
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
    read_visit: int = 0
    read_now: CursorReading = CursorReading()
    read_before: CursorReading = CursorReading()


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


class SavedState(Struct, frozen=True, kw_only=True):
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


class SavedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline between two workers; `attempt` is that of its command which kept it."""

    walk: PipelinePosition
    scratch: SavedState
    attempt: int = 0
    notes: list[str] = []


class WaitingRow(Struct, frozen=True, kw_only=True):
    """A row of a frame that waits; `index` is None for a body that takes the whole frame."""

    index: int | None
    saved: SavedPipeline
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


class ResumedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline taken up again, and what its wait has brought."""

    saved: SavedPipeline
    status: str
    outcome: Outcome


class PipelineParked(Exception):  # noqa: N818 - it tells the lane to let go, which is no error
    """The pipeline waits: its command ends here until the wait does."""

    def __init__(self, wait: Wait) -> None:
        super().__init__(wait.task)
        self.wait = wait


class FrameParked(Exception):  # noqa: N818 - it tells the lane to let go, which is no error
    """A row of the frame waits, and with it the frame."""

    def __init__(self, saved: SavedFrame) -> None:
        super().__init__(saved.waiting[0].wait.task)
        self.saved = saved


class PipelineHalted(Exception):  # noqa: N818 - it tells the lane to let go, which is no error
    """The execution is being cancelled, and what the pipeline had submitted was called off."""


S = TypeVar("S", SavedPipeline, SavedFrame)


async def store_parked(
    parked_state: SavedPipeline | SavedFrame, services: CommandServices
) -> PayloadRef:
    """Store a pipeline or a frame, for any worker to take up; raises `ToolFailure`."""
    # Not canonical: the order of the tasks is part of the result.
    data = services.mask.mask_bytes(codec.encode_json(parked_state))
    return await services.payloads.store_payload(data, media_type=JSON_MEDIA_TYPE)


async def load_parked_pipeline(resume: Resume, services: CommandServices) -> ResumedPipeline:
    """Load a pipeline and what its wait has brought; raises `ToolFailure`."""
    saved_pipeline = await _load_parked(resume, SavedPipeline, services)
    return ResumedPipeline(
        saved=saved_pipeline, status=resume.status, outcome=await _build_outcome(resume, services)
    )


async def load_parked_frame(
    resume: Resume, services: CommandServices
) -> tuple[SavedFrame, ResumedPipeline]:
    """Load a frame, and the row of it whose wait has ended; raises `ToolFailure`."""
    saved_frame = await _load_parked(resume, SavedFrame, services)
    outcome = await _build_outcome(resume, services)
    first = saved_frame.waiting[0]
    return saved_frame, ResumedPipeline(saved=first.saved, status=resume.status, outcome=outcome)


async def _load_parked(resume: Resume, kind: type[S], services: CommandServices) -> S:
    value = await services.payloads.load_value(resume.ref)
    try:
        return codec.convert_value(value, kind)
    except msgspec.ValidationError as problem:
        text = f"the parked work at {resume.ref.uri} cannot be read: {problem}"
        raise ToolFailure(build_error("internal", text)) from problem


async def _build_outcome(resume: Resume, services: CommandServices) -> Outcome:
    if resume.error is not None:
        return Outcome(error=resume.error)
    about = {"execution_id": resume.child_execution_id, "status": resume.status}
    if resume.result is None:
        return Outcome(data=about)
    value = await _load_plain_result(resume.result, str(resume.child_execution_id), services)
    if isinstance(value, Mapping) and resume.child_execution_id is not None:
        return Outcome(data={**about, **value})
    return Outcome(data=value)


async def _load_plain_result(
    result: ResultEnvelope, execution_id: str, services: CommandServices
) -> Any:
    """Give another execution's result as a value of this one."""
    loaded_result = await result_values.load_stored_result(services.payloads.load_value, result)
    result_view = result_envelope.view_result(
        result,
        execution_id=execution_id,
        step="child",
        run="latest",
        find=result_envelope.make_payload_finder(loaded_result),
    )
    return output_forms.to_plain(result_view)


async def build_child_wait(call: Call, services: CommandServices, *, key: str) -> ChildWait:
    """Say which child a `playbook` task wants; raises `ToolFailure`."""
    fields = call.fields
    path = fields.get("path")
    if not isinstance(path, str) or not path.strip("/ "):
        raise _build_field_failure(call, "path", path, "the path of a registered playbook")
    request = {**_get_mapping(call, "workload"), **_get_mapping(call, "payload"), **call.input}
    if call.site.keychain is not None:
        # The child's request is an event: its secrets travel sealed and open in its own tasks.
        request = call.site.keychain.seal_secrets(request, is_secret=False)
    data = services.mask.mask_bytes(codec.encode_json(request))
    if len(data) > CHILD_INPUT_BYTES_MAX:
        text = (
            f"task '{call.task}': the inputs of the child take {len(data)} bytes, "
            f"{CHILD_INPUT_BYTES_MAX} is the limit: hand over a reference or the name of a table"
        )
        raise ToolFailure(build_error("payload_too_large", text))
    is_small = len(data) <= RESULT_INLINE_BYTES_MAX
    return_step = fields.get("return_step")
    return ChildWait(
        key=key,
        task=call.task,
        path=services.mask.mask_text(path.strip("/ ")),
        version=_parse_version(call),
        workload=codec.decode_json(data) if is_small else {},
        workload_ref=None
        if is_small
        else await services.payloads.store_payload(data, media_type=JSON_MEDIA_TYPE),
        return_step=None if return_step is None else services.mask.mask_text(str(return_step)),
        is_awaited=_parse_is_awaited(call),
        timeout_s=call.timeout.total,
    )


def build_output(saved_output: SavedOutput, view: ResultView | PayloadHandle) -> OutputView:
    """Return the envelope of an attempt, also of one that another worker made."""
    meta = {
        "attempt": saved_output.attempt,
        "attempts_total": saved_output.attempt,
        "duration_ms": saved_output.duration_s * 1000,
        "started_at": saved_output.started_at,
        "worker_id": saved_output.worker_id,
    }
    result = saved_output.result
    if isinstance(view, PayloadHandle):
        return OutputView(view, kind=result.kind, meta=meta)
    data = view if saved_output.has_data else MISSING
    return OutputView(data, kind=result.kind, error=result.error, meta=meta)


def _get_mapping(call: Call, field: str) -> dict[str, Any]:
    mapping = call.fields.get(field) or {}
    if not isinstance(mapping, dict):
        raise _build_field_failure(call, field, mapping, "a mapping")
    return mapping


def _parse_is_awaited(call: Call) -> bool:
    wait = call.fields.get("wait")
    is_awaited = True if wait is None else coercion.coerce_boolean(wait)
    if is_awaited is None:
        raise _build_field_failure(call, "wait", wait, "true or false")
    return is_awaited


def _parse_version(call: Call) -> int | None:
    field_value = call.fields.get("version")
    if field_value is None or field_value == "latest":
        return None
    version = coercion.coerce_integer(field_value)
    if version is None or version < 1:
        raise _build_field_failure(call, "version", field_value, "a version number or 'latest'")
    return version


def _build_field_failure(
    call: Call, field: str, field_value: Any, expected_form: str
) -> ToolFailure:
    text = f"task '{call.task}', field '{field}': {field_value!r} is not {expected_form}"
    return ToolFailure(build_error("validation", text))


def build_cannot_wait_error(kind: str) -> ErrorObject:
    """Say that this frame's rows cannot wait."""
    return build_error(
        "unsupported_tool",
        f"kind '{kind}' cannot wait in a frame with 'transaction: true', nor in a loop with "
        "'exec: local': leave that out, or use mode 'parallel' or 'sequential'",
    )
