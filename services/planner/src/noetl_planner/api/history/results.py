"""Results of steps: by their step, and by the locator that playbooks see (language, 9 and 18)."""

from functools import partial
from typing import Annotated, Any

from litestar import get
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from noetl_contracts import codec, locators
from noetl_contracts.errors import ResultMalformed
from noetl_contracts.events.loop_events import LoopDone, LoopFailed
from noetl_contracts.events.step_events import CallDone, CallError
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup, payload_reader, replay_slices
from noetl_planner.api.lookup.payload_reader import WINDOW_MAX, PayloadSchema, Window
from noetl_playbook.templates import output_forms
from noetl_playbook.views import error_view, result_envelope
from noetl_playbook.views.result_view import view_task
from noetl_playbook.views.results import PipelineResult
from noetl_replay.state import StepState
from noetl_storage.arrow import result_values
from noetl_storage.ports.payload_ports import PayloadTier

LATEST = "latest"

Offset = Annotated[int, QueryParameter(ge=0)]
Limit = Annotated[int, QueryParameter(ge=1, le=WINDOW_MAX)]


class ResultView(Struct, frozen=True, kw_only=True):
    """The latest result of a step; of a row set, a window.

    `tier` is where it lies. `schema` is that of a payload in Arrow, read from its head alone.
    """

    execution_id: str
    step: str
    run_id: str | None
    status: str
    ref: str | None
    data: Any
    error: Any
    total: int | None
    offset: int | None
    has_next: bool
    tier: PayloadTier | None = None
    media_type: str | None = None
    schema: PayloadSchema | None = None


class ResultOutline(Struct, frozen=True, kw_only=True):
    """What is known of a step's latest result without reading it.

    Results of equal `digest` are equal: it is the SHA-256 of the stored content. `tier` is where
    the content lies. `schema` is told of the one step that is asked for, where it is kept in
    Arrow or Parquet.
    """

    step: str
    run_id: str | None
    status: str
    ref: str | None
    bytes: int | None
    row_count: int | None
    fields: dict[str, Any]
    digest: str | None = None
    tier: PayloadTier | None = None
    media_type: str | None = None
    schema: PayloadSchema | None = None


class ResultList(Struct, frozen=True, kw_only=True):
    """The latest result of every step that has one.

    `last_step` is the step that ended last, of those whose result is not empty.
    """

    execution_id: str
    results: list[ResultOutline]
    last_step: str | None = None


class ResultStats(Struct, frozen=True, kw_only=True):
    """How many results an execution has, and what those in the store take."""

    execution_id: str
    results: int
    inline: int
    stored: int
    stored_bytes: int


@get("/result/{execution_id:str}/list", tags=["results"])
async def list_results(
    services: Services,
    execution_id: FromPath[str],
    version: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
    schema_of: Annotated[str | None, QueryParameter(max_length=512)] = None,
) -> ResultList:
    """List the latest result of every step, or with a `version` those that there were by it.

    `schema_of` names the step whose schema is told, also of a payload too large for an answer.
    """
    return await list_step_results(services, execution_id, version=version, schema_of=schema_of)


async def list_step_results(
    services: ApiServices,
    execution_id: str,
    *,
    version: int | None = None,
    schema_of: str | None = None,
) -> ResultList:
    """List the latest result of every step; raises a 404 for an execution that is not there."""
    checked_id, steps = await _list_steps_with_results(services, execution_id, version=version)
    with_values = [step for step in steps if step.error or not _is_empty_result(step.result)]
    last = max(enumerate(with_values), key=_end_order, default=None)
    return ResultList(
        execution_id=checked_id,
        results=[
            await _outline_result(services, checked_id, step, has_schema=step.step == schema_of)
            for step in steps
        ],
        last_step=None if last is None else last[1].step,
    )


@get("/result/{execution_id:str}/stats", tags=["results"])
async def show_stats(services: Services, execution_id: FromPath[str]) -> ResultStats:
    """Count the latest results."""
    checked_id, steps = await _list_steps_with_results(services, execution_id)
    stored = [
        step.result.reference.payload_bytes
        for step in steps
        if step.result is not None and step.result.reference is not None
    ]
    return ResultStats(
        execution_id=checked_id,
        results=len(steps),
        inline=len(steps) - len(stored),
        stored=len(stored),
        stored_bytes=sum(stored),
    )


# A step called `list` or `stats` is read by the second address, which names nothing else.
@get(
    ["/result/{execution_id:str}/{step:path}", "/executions/{execution_id:str}/result/{step:path}"],
    tags=["results"],
)
async def show_result(
    services: Services,
    execution_id: FromPath[str],
    step: FromPath[str],
    offset: Offset = 0,
    limit: Limit = 1000,
    version: Annotated[int | None, QueryParameter(ge=1, le=problems.NUMBER_MAX)] = None,
) -> ResultView:
    """Show the latest result of a step, or with a `version` that of then; row sets by windows."""
    # A step may have any name, with slashes too; the path begins with the one before it.
    return await get_step_result(
        services,
        execution_id,
        step.removeprefix("/"),
        offset=offset,
        limit=limit,
        version=version,
    )


async def get_step_result(
    services: ApiServices,
    execution_id: str,
    step: str,
    *,
    offset: int,
    limit: int,
    version: int | None = None,
) -> ResultView:
    """Read a window of a step's latest result by a version; raises a 404 when it has none."""
    checked_id, steps = await _list_steps_with_results(services, execution_id, version=version)
    step_result = next((step_state for step_state in steps if step_state.step == step), None)
    if step_result is None:
        await _check_playbook_step(services, execution_id, step)
        raise problems.build_not_found_error(
            f"step {step[:200]!r} of execution {checked_id} has no result",
            hint=f"noetl status {checked_id} lists the steps that ran",
        )
    error = error_view.show_error(step_result.error) if step_result.error is not None else None
    value = await _read_plain_result(
        services,
        checked_id,
        step_result.step,
        _find_result_run(step_result),
        step_result.result,
        error=error,
    )
    window = payload_reader.view_window(value, offset=offset, limit=limit)
    reference = None if step_result.result is None else step_result.result.reference
    return ResultView(
        execution_id=checked_id,
        step=step_result.step,
        run_id=_find_result_run(step_result),
        status="error" if error is not None else "ok",
        ref=_find_result_locator(checked_id, step_result),
        data=window.data,
        error=error_view.show_error_record(error),
        total=window.total,
        offset=window.offset,
        has_next=window.has_next,
        tier=_find_tier(services, step_result.result),
        media_type=None if reference is None else reference.media_type,
        schema=await payload_reader.read_payload_schema(services, reference),
    )


async def _check_playbook_step(services: ApiServices, execution_id: str, step: str) -> None:
    """Raise a 404 when the playbook of an execution has no such step."""
    row = await execution_lookup.get_execution_row(services, execution_id)
    await execution_lookup.check_step_name(
        services,
        ExecutionId(row["execution_id"]),
        path=row["path"],
        version=row.get("catalog_version"),
        step=step,
    )


async def resolve_result(
    services: ApiServices, segments: tuple[str, ...], *, offset: int, limit: int
) -> tuple[Window, PayloadRef | None]:
    """Read what `noetl://execution/<id>/result/<step>/<run>[/<task>]` points to.

    Raises a 404 for a run that has no result, or a task that did not run.
    """
    _, execution_id, _, step, run, *task = segments
    row = await execution_lookup.get_execution_row(services, execution_id)
    checked_id = ExecutionId(row["execution_id"])
    result, error = await _get_run_result(services, checked_id, step, run)
    if task:
        value = await _get_task_result(services, result, step, task[0])
    else:
        value = await _read_plain_result(services, checked_id, step, run, result, error=error)
    reference = result.reference if result is not None else None
    return payload_reader.view_window(value, offset=offset, limit=limit), reference


async def _get_run_result(
    services: ApiServices, execution_id: ExecutionId, step: str, run: str
) -> tuple[ResultEnvelope | None, dict[str, Any] | None]:
    """Return result and error of one run of a step; raises a 404.

    The state has the latest run; earlier runs are read from the ledger.
    """
    state = await execution_lookup.fold_execution(services, execution_id)
    latest = state.steps.get(step)
    is_latest = latest is not None and run in {_find_result_run(latest), LATEST}
    if latest is not None and is_latest and (latest.result or latest.error):
        return latest.result, error_view.show_error(
            latest.error
        ) if latest.error is not None else None
    envelope = await services.history.ledger.find_outcome(execution_id, run)
    match envelope.event if envelope is not None else None:
        case CallDone(step=of, result=result) | LoopDone(step=of, result=result) if of == step:
            return result, None
        case CallError(step=of, result=earlier, error=error) if of == step:
            return earlier, error_view.show_error(error)
        case LoopFailed(step=of, result=earlier, error=error) if of == step:
            return earlier, error_view.show_error(error)
        case _:
            raise _build_no_run_error(execution_id, step, run)


async def _get_task_result(
    services: ApiServices, result: ResultEnvelope | None, step: str, task: str
) -> Any:
    context = result.context if result is not None else {}
    data = await result_values.load_result(partial(payload_reader.read_payload, services), result)
    is_pipeline = context.get("shape", result_envelope.PIPELINE) == result_envelope.PIPELINE
    task_result = (
        result_envelope.convert_stored(data, PipelineResult).tasks.get(task)
        if is_pipeline
        else None
    )
    if task_result is None:
        raise problems.build_not_found_error(
            f"task {task[:200]!r} of step {step[:200]!r} has no result"
        )
    return output_forms.to_plain(view_task(task_result))


def _build_no_run_error(execution_id: ExecutionId, step: str, run: str) -> ApiError:
    return problems.build_not_found_error(
        f"run {run[:80]!r} of step {step[:200]!r} of execution {execution_id} has no result"
    )


async def _list_steps_with_results(
    services: ApiServices, text: str, *, version: int | None = None
) -> tuple[ExecutionId, list[StepState]]:
    row = await execution_lookup.get_execution_row(services, text)
    execution_id = ExecutionId(row["execution_id"])
    if version is None:
        state = await execution_lookup.fold_execution(services, execution_id)
    else:
        await execution_lookup.get_version_time(services, execution_id, version)
        state = await replay_slices.fold_state(services, execution_id, until=version)
    return execution_id, [
        step_state for step_state in state.steps.values() if step_state.result or step_state.error
    ]


async def _read_plain_result(
    services: ApiServices,
    execution_id: ExecutionId,
    step: str,
    run: str | None,
    result: ResultEnvelope | None,
    *,
    error: dict[str, Any] | None,
) -> Any:
    loaded = await result_values.load_stored_result(
        partial(payload_reader.read_payload, services), result
    )
    view = result_envelope.view_result(
        result,
        execution_id=execution_id,
        step=step,
        run=run or "",
        find=result_envelope.make_payload_finder(loaded),
        error=error,
    )
    return output_forms.to_plain(view)


async def _outline_result(
    services: ApiServices, execution_id: ExecutionId, step: StepState, *, has_schema: bool
) -> ResultOutline:
    result = step.result
    reference = result.reference if result is not None else None
    return ResultOutline(
        step=step.step,
        run_id=_find_result_run(step),
        status="error" if step.error is not None else "ok",
        ref=_find_result_locator(execution_id, step),
        bytes=None if reference is None else reference.payload_bytes,
        row_count=None if reference is None else reference.row_count,
        fields=result.context.get("fields", {}) if result is not None else {},
        digest=None if result is None else _digest_result(result),
        tier=_find_tier(services, result),
        media_type=None if reference is None else reference.media_type,
        schema=await payload_reader.read_payload_schema(services, reference)
        if has_schema
        else None,
    )


def _find_tier(services: ApiServices, result: ResultEnvelope | None) -> PayloadTier | None:
    """Tell where a result lies: in its event, or in the store and perhaps nearer to workers."""
    if result is None:
        return None
    return PayloadTier.LEDGER if result.reference is None else services.store_tier


def _digest_result(result: ResultEnvelope) -> str:
    if result.reference is not None:
        return result.reference.sha256
    return codec.digest_hex(codec.encode_canonical(result.context))


def _end_order(numbered: tuple[int, StepState]) -> tuple[float, int]:
    """Order steps by their end; of those that ended together the one entered last is the last."""
    number, step = numbered
    return (step.ended_at.timestamp() if step.ended_at is not None else 0.0), number


def _is_empty_result(result: ResultEnvelope | None) -> bool:
    """Tell whether no task gave anything, as in a step that only ends a playbook."""
    if result is None or result.reference is not None:
        return result is None
    if result.context.get("shape", result_envelope.PIPELINE) != result_envelope.PIPELINE:
        return False
    try:
        pipeline_result = result_envelope.convert_stored(
            result.context.get("data", {}), PipelineResult
        )
    except ResultMalformed:
        # The reader is told what is wrong with it.
        return False
    return all(
        task.error is None and task.raw in (None, {}) for task in pipeline_result.tasks.values()
    )


def _find_result_run(step: StepState) -> str | None:
    """Name the run that the latest result is of; unknown while a later run is under way."""
    return None if step.status is RunStatus.RUNNING else step.run_id


def _find_result_locator(execution_id: ExecutionId, step: StepState) -> str | None:
    if step.result is None or step.result.reference is None:
        return None
    return locators.build_result_locator(execution_id, step.step, _find_result_run(step) or LATEST)


ROUTES = [list_results, show_stats, show_result]
