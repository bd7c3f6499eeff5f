"""The command as a worker over HTTP gets it, with the items or rows to run."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command, FrameWork, ItemWork, ReduceWork
from noetl_contracts.commands.loop_collections import CollectionForm, CollectionLayout
from noetl_contracts.ids import EventId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import payload_reader
from noetl_planner.api.loop_items.loop_record import CollectionReader
from noetl_planner.domain import command_messages
from noetl_planner.domain.decision import evaluation, limits
from noetl_planner.domain.decision.draft import DecisionDraft, DecisionInputs
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_playbook.templates import output_forms
from noetl_playbook.templates.render_record import RenderRecord
from noetl_playbook.views.payload_handle import PayloadNeeded
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


class CommandView(Struct, frozen=True, kw_only=True):
    """A command with its rendered inputs, for workers that have no template engine."""

    command: dict[str, Any]
    tasks: list[TaskView]
    item: Any = None
    frame: FrameView | None = None


async def build_command_view(
    services: ApiServices, state: ExecutionState, command_state: CommandState
) -> CommandView:
    """Build a claimed command; parts too large for a message are stored first."""
    program = await services.playbooks.programs.get_begun_program(state)
    draft = DecisionDraft(
        state=state,
        program=program,
        stamp=DecisionInputs(
            now=services.clock.now(),
            producer="claims",
            next_event_id=lambda: EventId(services.mint()),
        ),
        limits=limits.lower_limits(services.limits, program.playbook.executor.spec.policy.limits),
        loaded={},
    )
    command = command_messages.build_command(draft, command_state)
    for data in draft.payloads.values():
        await services.payloads.put_payload(
            data, media_type=JSON_MEDIA_TYPE, **services.tenant_scope
        )
    item = await _read_work_item(services, command)
    plain_command = codec.to_builtins(command)
    # Secrets open in the workers of this deployment alone.
    plain_command.pop("keychain", None)
    return CommandView(
        command=plain_command,
        tasks=await _view_tasks(services, draft, command_state, item),
        item=item,
        frame=await _view_frame_work(services, command),
    )


async def _view_frame_work(services: ApiServices, command: Command) -> FrameView | None:
    match command.work:
        case FrameWork() as work:
            rows = await _read_work_items(services, work)
            indices = await _read_indices(services, work)
            process = str(work.frame.get("process", "row"))
            return _build_frame_view(work, work.frame_index, process, rows=rows, indices=indices)
        case ReduceWork() as work:
            listed = await payload_reader.read_payload(services, work.parts_ref)
            return _build_frame_view(
                work, work.level, PROCESS_FRAME, parts=listed[work.start : work.end]
            )
        case _:
            return None


def _build_frame_view(
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


async def _read_indices(services: ApiServices, work: FrameWork) -> list[int]:
    if work.layout_ref is None:
        return list(range(work.start, work.end))
    layout = codec.convert_value(
        await payload_reader.read_payload(services, work.layout_ref), CollectionLayout
    )
    return layout.order[work.start : work.end]


async def _read_work_items(services: ApiServices, work: FrameWork | ItemWork) -> list[Any]:
    start, end = (
        (work.start, work.end) if isinstance(work, FrameWork) else (work.index, work.index + 1)
    )
    collection = CollectionReader(services, form=work.form, reference=work.collection_ref)
    return [await collection.read_item(place) for place in range(start, end)]


async def _read_work_item(services: ApiServices, command: Command) -> Any:
    work = command.work
    if not isinstance(work, ItemWork):
        return None
    if work.collection_ref is None and work.form is not CollectionForm.RANGE:
        return work.item
    return (await _read_work_items(services, work))[0]


async def _view_tasks(
    services: ApiServices, draft: DecisionDraft, command_state: CommandState, item: Any
) -> list[TaskView]:
    step = draft.program.steps[command_state.step]
    bound: dict[str, Any] = {}
    if step.loop is not None and command_state.item_index is not None:
        bound = {"iter": {step.loop.iterator: item, "_index": command_state.item_index}}
    return [
        await _view_task(services, draft, entry, bound, step=command_state.step)
        for entry in draft.program.get_step_definition(command_state.step)["tool"]
    ]


async def _view_task(
    services: ApiServices,
    draft: DecisionDraft,
    task: dict[str, Any],
    bound: dict[str, Any],
    *,
    step: str,
) -> TaskView:
    written, error = task.get("input", {}), None
    rendered_input: Any = written
    try:
        rendered_input = await _render_input(services, draft, written, bound, step=step)
    except Refusal as refusal:
        error = refusal.error.message
    return TaskView(
        name=task["name"],
        kind=task["kind"],
        fields=task.get("fields", {}),
        input=rendered_input,
        input_error=error,
    )


async def _render_input(
    services: ApiServices, draft: DecisionDraft, value: Any, bound: dict[str, Any], *, step: str
) -> Any:
    def compute_input(renders: RenderRecord) -> Any:
        draft.renders = renders
        names = evaluation.build_scope(draft, None, **bound)
        return output_forms.to_plain(
            evaluation.render_value(value, names, step=step, field="input")
        )

    for _ in range(_LOADS_MAX):
        try:
            return await services.playbooks.render_processes.render_computation(compute_input)
        except PayloadNeeded as needed:
            reference = needed.stored.reference
            loaded = await payload_reader.read_payload(services, reference)
            draft.loaded = {**draft.loaded, reference.sha256: loaded}
    raise Refusal.for_step("limit", step, f"input names more than {_LOADS_MAX} payloads")
