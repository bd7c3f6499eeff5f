"""What a worker over HTTP is handed: its command as any worker gets it, and the rows of a frame."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands import Command, FrameWork, ItemWork, ReduceWork
from noetl_contracts.ids import EventId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.slicing import Form, Layout
from noetl_planner.domain import dispatch, evaluation, limits
from noetl_planner.domain.draft import Draft, Stamp
from noetl_planner.domain.evaluation import Refusal
from noetl_planner.http import reading
from noetl_planner.http.loop_items.collection import Collection
from noetl_planner.http.services import ApiServices
from noetl_playbook import forms
from noetl_playbook.handles import PayloadNeeded
from noetl_playbook.templates.render_record import Renders
from noetl_replay.state import CommandState, ExecutionState

PROCESS_FRAME = "frame"
_LOADS_MAX = 16


class TaskView(Struct, frozen=True, kw_only=True):
    """One task of the pipeline: its fields as written, its `input` rendered.

    `input_error` says why a template did not render: then `input` is as written.
    """

    name: str
    kind: str
    fields: dict[str, Any]
    input: dict[str, Any]
    input_error: str | None = None


class FrameView(Struct, frozen=True, kw_only=True):
    """A frame: its rows with their places in the loop's collection, or the parts to combine.

    `process` says whether the body runs once a row or once for all rows.
    """

    frame_id: str
    stage_id: str
    slot: int
    frame_index: int
    attempt: int
    row_count: int
    process: str
    policy: dict[str, Any]
    rows: list[Any]
    indices: list[int]
    parts: list[Any]


class Handed(Struct, frozen=True, kw_only=True):
    """A command, and what can be worked out for whoever runs no templates."""

    command: dict[str, Any]
    tasks: list[TaskView]
    item: Any = None
    frame: FrameView | None = None


async def hand(services: ApiServices, state: ExecutionState, live: CommandState) -> Handed:
    """Build a claimed command; parts too large for a message are stored first."""
    program = await services.programs.begun(state)
    draft = Draft(
        state=state,
        program=program,
        stamp=Stamp(
            now=services.clock.now(),
            producer="claims",
            next_event_id=lambda: EventId(services.mint()),
        ),
        limits=limits.lowered(services.limits, program.playbook.executor.spec.policy.limits),
        loaded={},
    )
    command = dispatch.message(draft, live)
    for data in draft.payloads.values():
        await services.payloads.put(data, media_type=JSON_MEDIA_TYPE, **services.place)
    item = await _item(services, command)
    shown = codec.builtins(command)
    # Secrets open in the workers of this deployment alone.
    shown.pop("keychain", None)
    return Handed(
        command=shown,
        tasks=await _tasks(services, draft, live, item),
        item=item,
        frame=await _frame(services, command),
    )


async def _frame(services: ApiServices, command: Command) -> FrameView | None:
    match command.work:
        case FrameWork() as work:
            rows = await _slice(services, work)
            indices = await _indices(services, work)
            process = str(work.frame.get("process", "row"))
            return _view(work, work.frame_index, process, rows=rows, indices=indices)
        case ReduceWork() as work:
            listed = await reading.read(services, work.parts_ref)
            return _view(work, work.level, PROCESS_FRAME, parts=listed[work.start : work.end])
        case _:
            return None


def _view(
    work: FrameWork | ReduceWork,
    index: int,
    process: str,
    *,
    rows: list[Any] | None = None,
    indices: list[int] | None = None,
    parts: list[Any] | None = None,
) -> FrameView:
    return FrameView(
        frame_id=work.frame_id,
        stage_id=work.stage_id,
        slot=work.unit,
        frame_index=index,
        attempt=work.attempt,
        row_count=work.end - work.start,
        process=process,
        policy=work.frame,
        rows=rows or [],
        indices=indices or [],
        parts=parts or [],
    )


async def _indices(services: ApiServices, work: FrameWork) -> list[int]:
    if work.layout_ref is None:
        return list(range(work.start, work.end))
    layout = codec.convert(await reading.read(services, work.layout_ref), Layout)
    return layout.order[work.start : work.end]


async def _slice(services: ApiServices, work: FrameWork | ItemWork) -> list[Any]:
    start, end = (
        (work.start, work.end) if isinstance(work, FrameWork) else (work.index, work.index + 1)
    )
    collection = Collection(services, form=work.form, reference=work.collection_ref)
    return [await collection.get(place) for place in range(start, end)]


async def _item(services: ApiServices, command: Command) -> Any:
    work = command.work
    if not isinstance(work, ItemWork):
        return None
    if work.collection_ref is None and work.form is not Form.RANGE:
        return work.item
    return (await _slice(services, work))[0]


async def _tasks(
    services: ApiServices, draft: Draft, live: CommandState, item: Any
) -> list[TaskView]:
    step = draft.program.steps[live.step]
    bound: dict[str, Any] = {}
    if step.loop is not None and live.item_index is not None:
        bound = {"iter": {step.loop.iterator: item, "_index": live.item_index}}
    return [
        await _task(services, draft, one, bound, step=live.step)
        for one in draft.program.definition(live.step)["tool"]
    ]


async def _task(
    services: ApiServices, draft: Draft, task: dict[str, Any], bound: dict[str, Any], *, step: str
) -> TaskView:
    written, error = task.get("input", {}), None
    given: Any = written
    try:
        given = await _rendered(services, draft, written, bound, step=step)
    except Refusal as refusal:
        error = refusal.error.message
    return TaskView(
        name=task["name"],
        kind=task["kind"],
        fields=task.get("fields", {}),
        input=given,
        input_error=error,
    )


async def _rendered(
    services: ApiServices, draft: Draft, value: Any, bound: dict[str, Any], *, step: str
) -> Any:
    def compute(renders: Renders) -> Any:
        draft.renders = renders
        names = evaluation.scope(draft, None, **bound)
        return forms.plain(evaluation.render(value, names, step=step, field="input"))

    for _ in range(_LOADS_MAX):
        try:
            return await services.children.render(compute)
        except PayloadNeeded as needed:
            reference = needed.stored.reference
            loaded = await reading.read(services, reference)
            draft.loaded = {**draft.loaded, reference.sha256: loaded}
    raise Refusal.of("limit", step, f"input names more than {_LOADS_MAX} payloads")
