"""Lineage: which run read and wrote what, told from a history as OpenLineage's run events.

An execution is a run, each activation of a step is a run within it; items, frames and attempts are
none, so that a history of a hundred thousand events tells of its steps alone. What is told depends
on the history and the playbook only: building it again gives the same bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import UNSET, Struct, UnsetType

from noetl_contracts import codec, locators
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import LINEAGE_EVENTS, execution_events, loop_events, step_events
from noetl_contracts.ids import CatalogId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.openlineage import (
    Assertion,
    Dataset,
    DatasetFacets,
    DatasetIdentifier,
    ErrorFacet,
    InputDataset,
    Job,
    JobFacets,
    JobName,
    JobTypeFacet,
    OutputDataset,
    OutputFacets,
    OutputStatisticsFacet,
    ParentFacet,
    RootRun,
    Run,
    RunEvent,
    RunFacets,
    RunState,
    SchemaFacet,
    SchemaField,
    SqlFacet,
    StepData,
    SymlinksFacet,
    VersionFacet,
)
from noetl_contracts.openlineage import RunId as RunName
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_replay import lineage_checks

# Bumped when the same history is told otherwise; what was kept is told again then.
LINEAGE_VERSION = 3
_MESSAGE_CHARACTERS_MAX = 4000

Plan = Mapping[str, StepData]
COLUMNS_MAX = 500


class OpenLineageRun(Struct, kw_only=True):
    """An activation whose end was not told."""

    run_id: RunId
    step: str
    inputs: list[InputDataset]
    result: "ResultDataset | None" = None
    assertions: dict[str, list[Assertion]] = {}
    error: ErrorObject | None = None


class LineageState(Struct, kw_only=True):
    """What must be remembered of a history to tell what follows: steps and open runs only."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    version: int = 0
    path: str = ""
    catalog_id: CatalogId = CatalogId("")
    parent_id: ExecutionId | None = None
    has_ended: bool = False
    open: dict[RunId, OpenLineageRun] = msgspec.field(default_factory=dict)
    results: "dict[str, ResultDataset]" = msgspec.field(default_factory=dict)


class LineageEvent(Struct, frozen=True, kw_only=True):
    """An event to hand on, by the version that it comes from and its place among those."""

    version: int
    ordinal: int
    event: RunEvent


def is_lineage_event(envelope: Envelope) -> bool:
    """Tell whether an event of a history matters to lineage."""
    event = envelope.event
    return isinstance(event, LINEAGE_EVENTS) and getattr(event, "item_index", None) is None


def build_lineage_events(
    lineage: LineageState, envelopes: Iterable[Envelope], plan: Plan
) -> list[LineageEvent]:
    """Tell what follows, given those events of it that matter, in order; changes `lineage`."""
    lineage_events: list[LineageEvent] = []
    for at in envelopes:
        lineage.version = at.stream_version
        run_events = _build_run_events(lineage, at, plan) if is_lineage_event(at) else []
        lineage_events += [
            LineageEvent(version=at.stream_version, ordinal=ordinal, event=event)
            for ordinal, event in enumerate(run_events)
        ]
    return lineage_events


def _build_run_events(lineage: LineageState, at: Envelope, plan: Plan) -> list[RunEvent]:
    match at.event:
        case execution_events.PlaybookInitialized() as event:
            lineage.path, lineage.catalog_id = event.path, event.catalog_id
            lineage.parent_id = event.parent_execution_id
            return [_build_execution_event(lineage, at, RunState.START)]
        case execution_events.StateInherited() as event:
            for inherited in event.steps:
                _remember_result(lineage, inherited.step, inherited.result)
        case execution_events.PlaybookCompleted():
            return _end_all_runs(lineage, at, plan, RunState.COMPLETE)
        case execution_events.PlaybookFailed() as event:
            return _end_all_runs(lineage, at, plan, RunState.FAIL, error=event.error)
        case execution_events.ExecutionCancelled():
            return _end_all_runs(lineage, at, plan, RunState.ABORT)
        case _:
            return _build_step_events(lineage, at, plan)
    return []


def _build_step_events(lineage: LineageState, at: Envelope, plan: Plan) -> list[RunEvent]:
    match at.event:
        case step_events.StepEnter() as event:
            return [_start_step_run(lineage, at, event, plan)]
        case step_events.CallDone() | loop_events.LoopDone() as event:
            _note_result(lineage, event.run_id, event.result)
        case step_events.StepFailed() | step_events.CallError() | loop_events.LoopFailed() as event:
            if event.run_id in lineage.open:
                lineage.open[event.run_id].error = event.error
        case step_events.StepExit() as event:
            return _end_step_run(lineage, at, event, plan)
    return []


def _start_step_run(
    lineage: LineageState, at: Envelope, event: step_events.StepEnter, plan: Plan
) -> RunEvent:
    data = plan.get(event.step)
    step_run = OpenLineageRun(
        run_id=event.run_id,
        step=event.step,
        inputs=[
            *(_build_input(dataset) for dataset in (data.reads if data is not None else ())),
            *(
                _build_result_input(lineage, name)
                for name in (data.uses if data is not None else ())
                if name in lineage.results
            ),
        ],
    )
    lineage.open[event.run_id] = step_run
    return _build_step_event(lineage, at, step_run, plan, RunState.START)


def _note_result(lineage: LineageState, run_id: RunId, result: ResultEnvelope) -> None:
    run = lineage.open.get(run_id)
    if run is not None:
        run.result, run.error = read_result_dataset(result), None
        run.assertions = lineage_checks.read_assertions(_find_last_task(result.context.get("data")))
        _remember_result(lineage, run.step, result)


def _end_step_run(
    lineage: LineageState, at: Envelope, event: step_events.StepExit, plan: Plan
) -> list[RunEvent]:
    run = lineage.open.pop(event.run_id, None)
    if run is None:
        return []
    run.error = event.failure or event.error or run.error
    # A failed call has no result, and one by reference shows none of its checks.
    run.assertions = run.assertions or lineage_checks.read_task_assertions(event.tasks)
    state = {RunStatus.FAILED: RunState.FAIL, RunStatus.CANCELLED: RunState.ABORT}.get(
        event.status, RunState.COMPLETE
    )
    return [_build_step_event(lineage, at, run, plan, state)]


def _end_all_runs(
    lineage: LineageState,
    at: Envelope,
    plan: Plan,
    state: RunState,
    *,
    error: ErrorObject | None = None,
) -> list[RunEvent]:
    """End what is open, in the order in which it began, and then the execution."""
    run_events = [
        _build_step_event(lineage, at, run, plan, RunState.ABORT) for run in lineage.open.values()
    ]
    lineage.open, lineage.has_ended = {}, True
    return [*run_events, _build_execution_event(lineage, at, state, error=error)]


def _build_execution_event(
    lineage: LineageState, at: Envelope, state: RunState, *, error: ErrorObject | None = None
) -> RunEvent:
    name = build_job_name(lineage)
    return RunEvent(
        event_type=state,
        event_time=at.event_time,
        run=Run(
            run_id=derive_run_uuid(lineage, lineage.execution_id),
            facets=RunFacets(
                parent=_build_parent_facet(lineage), error_message=_build_error_facet(error)
            ),
        ),
        job=Job(
            namespace=name.namespace,
            name=name.name,
            facets=JobFacets(job_type=JobTypeFacet(job_type="PLAYBOOK")),
        ),
    )


def _build_step_event(
    lineage: LineageState, at: Envelope, run: OpenLineageRun, plan: Plan, state: RunState
) -> RunEvent:
    data = plan.get(run.step)
    job_name, run_id = (
        build_job_name(lineage, run.step),
        RunName(run_id=derive_run_uuid(lineage, lineage.execution_id)),
    )
    error = run.error if state is RunState.FAIL else None
    return RunEvent(
        event_type=state,
        event_time=at.event_time,
        run=Run(
            run_id=derive_run_uuid(lineage, lineage.execution_id, run.run_id),
            facets=RunFacets(
                parent=ParentFacet(
                    run=run_id,
                    job=build_job_name(lineage),
                    root=RootRun(run=run_id, job=build_job_name(lineage)),
                ),
                error_message=_build_error_facet(error),
            ),
        ),
        job=Job(
            namespace=job_name.namespace,
            name=job_name.name,
            facets=JobFacets(job_type=JobTypeFacet(job_type="STEP"), sql=_build_sql_facet(data)),
        ),
        inputs=lineage_checks.add_assertions(
            run.inputs, run.assertions, {} if data is None else data.checked
        ),
        outputs=_list_outputs(lineage, run, data) if state is not RunState.START else [],
    )


def build_job_name(lineage: LineageState, name: str | None = None) -> JobName:
    """Name an execution's job, its playbook, or the job of one of its steps."""
    return JobName(
        namespace=build_namespace(lineage),
        name=lineage.path if name is None else f"{lineage.path}.{name}",
    )


def build_namespace(lineage: LineageState) -> str:
    """Name the place of an organization's jobs and results."""
    return locators.build_locator(lineage.tenant_id, lineage.organization_id)


def derive_run_uuid(
    lineage: LineageState, execution_id: ExecutionId, run_id: RunId | None = None
) -> str:
    """Return the UUID of an execution, or of an activation within it."""
    tail = () if run_id is None else ("run", run_id)
    place = locators.build_resource_locator(
        lineage.tenant_id, lineage.organization_id, "execution", execution_id, *tail
    )
    return str(uuid5(NAMESPACE_URL, place))


def _build_parent_facet(lineage: LineageState) -> ParentFacet | UnsetType:
    """Name the execution that called this one; its playbook is told by its own events."""
    if lineage.parent_id is None:
        return UNSET
    return ParentFacet(
        run=RunName(run_id=derive_run_uuid(lineage, lineage.parent_id)),
        job=JobName(namespace=build_namespace(lineage), name=f"execution/{lineage.parent_id}"),
    )


def _list_outputs(
    lineage: LineageState, run: OpenLineageRun, data: StepData | None
) -> list[OutputDataset]:
    written_datasets = [
        OutputDataset(namespace=dataset.namespace, name=dataset.name)
        for dataset in (data.writes if data is not None else ())
    ]
    if run.result is None:
        return written_datasets
    result = run.result
    return [
        *written_datasets,
        OutputDataset(
            namespace=build_namespace(lineage),
            name=_build_result_name(lineage, run.step),
            facets=build_dataset_facets(result, namespace=build_namespace(lineage)),
            output_facets=build_output_facets(result),
        ),
    ]


def _build_input(dataset: Dataset) -> InputDataset:
    return InputDataset(namespace=dataset.namespace, name=dataset.name)


def _build_result_input(lineage: LineageState, name: str) -> InputDataset:
    return InputDataset(
        namespace=build_namespace(lineage),
        name=_build_result_name(lineage, name),
        facets=build_dataset_facets(lineage.results[name], namespace=build_namespace(lineage)),
    )


def _build_result_name(lineage: LineageState, name: str) -> str:
    """Build the locator of a step's result; runs share it and differ by its version."""
    return locators.build_resource_locator(
        lineage.tenant_id, lineage.organization_id, "result", lineage.path, name
    )


def _build_sql_facet(data: StepData | None) -> SqlFacet | UnsetType:
    if data is None or not data.statements:
        return UNSET
    return SqlFacet(
        query=";\n".join(data.statements), dialect=UNSET if data.dialect is None else data.dialect
    )


def _build_error_facet(error: ErrorObject | None) -> ErrorFacet | UnsetType:
    if error is None:
        return UNSET
    message = f"{error.code or error.kind}: {error.message}"
    # The engine's own language: which one the failing code was in, an error does not say.
    return ErrorFacet(message=message[:_MESSAGE_CHARACTERS_MAX], programming_language="PYTHON")


def _remember_result(lineage: LineageState, name: str, result: ResultEnvelope | None) -> None:
    result_dataset = read_result_dataset(result)
    if result_dataset is not None:
        lineage.results[name] = result_dataset


class ResultDataset(Struct, frozen=True, kw_only=True):
    """A step's result as a dataset: its version is the SHA-256 of its content."""

    sha256: str
    uri: str | None = None
    row_count: int | None = None
    size: int | None = None
    columns: tuple[str, ...] = ()


def build_dataset_facets(result: ResultDataset, *, namespace: str) -> DatasetFacets:
    """Say what is known of a result as a dataset."""
    place = DatasetIdentifier(namespace=namespace, name=result.uri or "", type="LOCATION")
    return DatasetFacets(
        version=VersionFacet(dataset_version=result.sha256),
        schema=SchemaFacet(fields=[SchemaField(name=column) for column in result.columns])
        if result.columns
        else UNSET,
        symlinks=SymlinksFacet(identifiers=[place]) if result.uri is not None else UNSET,
    )


def build_output_facets(result: ResultDataset) -> OutputFacets:
    """Say how much a result holds."""
    return OutputFacets(
        output_statistics=OutputStatisticsFacet(
            row_count=UNSET if result.row_count is None else result.row_count,
            size=UNSET if result.size is None else result.size,
        )
    )


def read_result_dataset(result: ResultEnvelope | None) -> ResultDataset | None:
    """Read what an envelope tells of a result; an inline one is its own content."""
    if result is None:
        return None
    reference, rows = result.reference, _find_last_task(result.context.get("data"))
    if reference is not None:
        return ResultDataset(
            sha256=reference.sha256,
            uri=reference.uri,
            row_count=reference.row_count,
            size=reference.payload_bytes,
            columns=_read_columns(result.context.get("columns")),
        )
    if "data" not in result.context:
        return None
    content = codec.encode_canonical(result.context["data"])
    return ResultDataset(
        sha256=codec.digest_hex(content),
        row_count=_read_row_count(rows),
        size=len(content),
        columns=_read_columns(rows.get("columns")),
    )


def _find_last_task(data: Any) -> Mapping[str, Any]:
    """Return what the last task of an inline result came to, where that is a mapping."""
    if not isinstance(data, dict):
        return {}
    tasks = data.get("tasks")
    last = data.get("last")
    front = tasks.get(last) if isinstance(tasks, dict) and isinstance(last, str) else None
    raw = front.get("raw") if isinstance(front, dict) else None
    return raw if isinstance(raw, dict) else {}


def _read_row_count(rows: Mapping[str, Any]) -> int | None:
    count = rows.get("row_count")
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _read_columns(value: Any) -> tuple[str, ...]:
    """Read names of columns, written as texts or as mappings with a name."""
    columns = []
    for item in value if isinstance(value, list) else ():
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str):
            columns.append(name)
    return tuple(columns[:COLUMNS_MAX])
