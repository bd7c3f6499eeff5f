"""Lineage: which run read and wrote what, told from a history as OpenLineage's run events.

An execution is a run, each activation of a step is a run within it; items, frames and attempts are
none, so that a history of a hundred thousand events tells of its steps alone. What is told depends
on the history and the playbook only: whoever tells it again tells the same bytes.
"""

from collections.abc import Iterable, Mapping
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import UNSET, Struct, UnsetType

from noetl_contracts import locators
from noetl_contracts.datasets import Dataset, StepData
from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import execution, loop, step
from noetl_contracts.ids import CatalogId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.openlineage import (
    ErrorFacet,
    Input,
    Job,
    JobFacets,
    JobName,
    JobTypeFacet,
    Output,
    ParentFacet,
    Root,
    Run,
    RunEvent,
    RunFacets,
    RunState,
    SqlFacet,
)
from noetl_contracts.openlineage import RunId as RunName
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_replay import lineage_results
from noetl_replay.lineage_results import KnownResult

# Bumped when the same history is told otherwise; what was kept is told again then.
LINEAGE_VERSION = 1
_MESSAGE_CHARACTERS_MAX = 4000

Plan = Mapping[str, StepData]


class OpenRun(Struct, kw_only=True):
    """An activation whose end was not told."""

    run_id: RunId
    step: str
    inputs: list[Input]
    result: KnownResult | None = None
    error: ErrorObject | None = None


class Lineage(Struct, kw_only=True):
    """What must be remembered of a history to tell what follows: steps and open runs only."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    version: int = 0
    path: str = ""
    catalog_id: CatalogId = CatalogId("")
    parent_id: ExecutionId | None = None
    has_ended: bool = False
    open: dict[RunId, OpenRun] = msgspec.field(default_factory=dict)
    results: dict[str, KnownResult] = msgspec.field(default_factory=dict)


class Told(Struct, frozen=True, kw_only=True):
    """An event to hand on, by the version that it comes from and its place among those."""

    version: int
    ordinal: int
    event: RunEvent


# What `tell` gives a meaning; items' outcomes share two of the types and have none.
EVENT_CLASSES = (
    execution.PlaybookInitialized,
    execution.StateInherited,
    execution.PlaybookCompleted,
    execution.PlaybookFailed,
    execution.ExecutionCancelled,
    step.StepEnter,
    step.StepFailed,
    step.StepExit,
    step.CallDone,
    step.CallError,
    loop.LoopDone,
    loop.LoopFailed,
)


def is_told(envelope: Envelope) -> bool:
    """Tell whether an event of a history matters to lineage."""
    event = envelope.event
    return isinstance(event, EVENT_CLASSES) and getattr(event, "item_index", None) is None


def tell(lineage: Lineage, envelopes: Iterable[Envelope], plan: Plan) -> list[Told]:
    """Tell what follows, given those events of it that matter, in order; changes `lineage`."""
    told: list[Told] = []
    for at in envelopes:
        lineage.version = at.stream_version
        found = _tell(lineage, at, plan) if is_told(at) else []
        told += [
            Told(version=at.stream_version, ordinal=ordinal, event=event)
            for ordinal, event in enumerate(found)
        ]
    return told


def _tell(lineage: Lineage, at: Envelope, plan: Plan) -> list[RunEvent]:
    match at.event:
        case execution.PlaybookInitialized() as event:
            lineage.path, lineage.catalog_id = event.path, event.catalog_id
            lineage.parent_id = event.parent_execution_id
            return [_of_execution(lineage, at, RunState.START)]
        case execution.StateInherited() as event:
            for inherited in event.steps:
                _remember(lineage, inherited.step, inherited.result)
        case execution.PlaybookCompleted():
            return _end(lineage, at, plan, RunState.COMPLETE)
        case execution.PlaybookFailed() as event:
            return _end(lineage, at, plan, RunState.FAIL, error=event.error)
        case execution.ExecutionCancelled():
            return _end(lineage, at, plan, RunState.ABORT)
        case _:
            return _tell_step(lineage, at, plan)
    return []


def _tell_step(lineage: Lineage, at: Envelope, plan: Plan) -> list[RunEvent]:
    match at.event:
        case step.StepEnter() as event:
            return [_enter(lineage, at, event, plan)]
        case step.CallDone() | loop.LoopDone() as event:
            _note_result(lineage, event.run_id, event.result)
        case step.StepFailed() | step.CallError() | loop.LoopFailed() as event:
            if event.run_id in lineage.open:
                lineage.open[event.run_id].error = event.error
        case step.StepExit() as event:
            return _exit(lineage, at, event, plan)
    return []


def _enter(lineage: Lineage, at: Envelope, event: step.StepEnter, plan: Plan) -> RunEvent:
    data = plan.get(event.step)
    begun = OpenRun(
        run_id=event.run_id,
        step=event.step,
        inputs=[
            *(_input(one) for one in (data.reads if data is not None else ())),
            *(
                _result_input(lineage, name)
                for name in (data.uses if data is not None else ())
                if name in lineage.results
            ),
        ],
    )
    lineage.open[event.run_id] = begun
    return _of_step(lineage, at, begun, plan, RunState.START)


def _note_result(lineage: Lineage, run_id: RunId, result: ResultEnvelope) -> None:
    run = lineage.open.get(run_id)
    if run is not None:
        run.result, run.error = lineage_results.known(result), None
        _remember(lineage, run.step, result)


def _exit(lineage: Lineage, at: Envelope, event: step.StepExit, plan: Plan) -> list[RunEvent]:
    run = lineage.open.pop(event.run_id, None)
    if run is None:
        return []
    run.error = event.failure or event.error or run.error
    state = {RunStatus.FAILED: RunState.FAIL, RunStatus.CANCELLED: RunState.ABORT}.get(
        event.status, RunState.COMPLETE
    )
    return [_of_step(lineage, at, run, plan, state)]


def _end(
    lineage: Lineage,
    at: Envelope,
    plan: Plan,
    state: RunState,
    *,
    error: ErrorObject | None = None,
) -> list[RunEvent]:
    """End what is open, in the order in which it began, and then the execution."""
    left = [_of_step(lineage, at, run, plan, RunState.ABORT) for run in lineage.open.values()]
    lineage.open, lineage.has_ended = {}, True
    return [*left, _of_execution(lineage, at, state, error=error)]


def _of_execution(
    lineage: Lineage, at: Envelope, state: RunState, *, error: ErrorObject | None = None
) -> RunEvent:
    name = job_of(lineage)
    return RunEvent(
        event_type=state,
        event_time=at.event_time,
        run=Run(
            run_id=run_of(lineage, lineage.execution_id),
            facets=RunFacets(parent=_caller(lineage), error_message=_error(error)),
        ),
        job=Job(
            namespace=name.namespace,
            name=name.name,
            facets=JobFacets(job_type=JobTypeFacet(job_type="PLAYBOOK")),
        ),
    )


def _of_step(lineage: Lineage, at: Envelope, run: OpenRun, plan: Plan, state: RunState) -> RunEvent:
    data = plan.get(run.step)
    own, whole = job_of(lineage, run.step), RunName(run_id=run_of(lineage, lineage.execution_id))
    error = run.error if state is RunState.FAIL else None
    return RunEvent(
        event_type=state,
        event_time=at.event_time,
        run=Run(
            run_id=run_of(lineage, lineage.execution_id, run.run_id),
            facets=RunFacets(
                parent=ParentFacet(
                    run=whole,
                    job=job_of(lineage),
                    root=Root(run=whole, job=job_of(lineage)),
                ),
                error_message=_error(error),
            ),
        ),
        job=Job(
            namespace=own.namespace,
            name=own.name,
            facets=JobFacets(job_type=JobTypeFacet(job_type="STEP"), sql=_sql(data)),
        ),
        inputs=run.inputs,
        outputs=_outputs(lineage, run, data) if state is not RunState.START else [],
    )


def job_of(lineage: Lineage, name: str | None = None) -> JobName:
    """Name an execution's job, its playbook, or the job of one of its steps."""
    return JobName(
        namespace=namespace_of(lineage),
        name=lineage.path if name is None else f"{lineage.path}.{name}",
    )


def namespace_of(lineage: Lineage) -> str:
    """Name the place of an organization's jobs and results."""
    return locators.build(lineage.tenant_id, lineage.organization_id)


def run_of(lineage: Lineage, execution_id: ExecutionId, run_id: RunId | None = None) -> str:
    """Return the UUID of an execution, or of an activation within it."""
    tail = () if run_id is None else ("run", run_id)
    place = locators.resource(
        lineage.tenant_id, lineage.organization_id, "execution", execution_id, *tail
    )
    return str(uuid5(NAMESPACE_URL, place))


def _caller(lineage: Lineage) -> ParentFacet | UnsetType:
    """Name the execution that called this one; its playbook is told by its own events."""
    if lineage.parent_id is None:
        return UNSET
    return ParentFacet(
        run=RunName(run_id=run_of(lineage, lineage.parent_id)),
        job=JobName(namespace=namespace_of(lineage), name=f"execution/{lineage.parent_id}"),
    )


def _outputs(lineage: Lineage, run: OpenRun, data: StepData | None) -> list[Output]:
    written = [
        Output(namespace=one.namespace, name=one.name)
        for one in (data.writes if data is not None else ())
    ]
    if run.result is None:
        return written
    result = run.result
    return [
        *written,
        Output(
            namespace=namespace_of(lineage),
            name=_result_name(lineage, run.step),
            facets=lineage_results.facets(result, namespace=namespace_of(lineage)),
            output_facets=lineage_results.statistics(result),
        ),
    ]


def _input(one: Dataset) -> Input:
    return Input(namespace=one.namespace, name=one.name)


def _result_input(lineage: Lineage, name: str) -> Input:
    return Input(
        namespace=namespace_of(lineage),
        name=_result_name(lineage, name),
        facets=lineage_results.facets(lineage.results[name], namespace=namespace_of(lineage)),
    )


def _result_name(lineage: Lineage, name: str) -> str:
    """Locate the result of a step, whatever run it is of: the version tells the runs apart."""
    return locators.resource(
        lineage.tenant_id, lineage.organization_id, "result", lineage.path, name
    )


def _sql(data: StepData | None) -> SqlFacet | UnsetType:
    if data is None or not data.statements:
        return UNSET
    return SqlFacet(
        query=";\n".join(data.statements), dialect=UNSET if data.dialect is None else data.dialect
    )


def _error(error: ErrorObject | None) -> ErrorFacet | UnsetType:
    if error is None:
        return UNSET
    said = f"{error.code or error.kind}: {error.message}"
    # The engine's own language: which one the failing code was in, an error does not say.
    return ErrorFacet(message=said[:_MESSAGE_CHARACTERS_MAX], programming_language="PYTHON")


def _remember(lineage: Lineage, name: str, result: ResultEnvelope | None) -> None:
    known = lineage_results.known(result)
    if known is not None:
        lineage.results[name] = known
