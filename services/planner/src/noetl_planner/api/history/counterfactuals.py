"""What an execution would have decided under another version of its playbook."""

import asyncio
from http import HTTPStatus
from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK
from msgspec import Meta, Struct

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import CatalogEntry, HistoryHead
from noetl_planner.api.catalog import catalog_entries
from noetl_planner.api.history import cuts
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import NUMBER_MAX, ApiError
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.lookup import execution_lookup
from noetl_planner.domain import counterfactuals, recorded_outcomes
from noetl_planner.domain.counterfactuals import Basis, Counterfactual, DecidedStep
from noetl_planner.domain.decision.draft import StateNeeded
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_planner.domain.decision.program import Program
from noetl_planner.domain.recorded_outcomes import RecordedHistory, RunKey, StepOutcome
from noetl_planner.facts.rejections import UNREADABLE
from noetl_planner.shards.caches import DecisionValues, PayloadCache
from noetl_planner.shards.render_processes import begin_renders
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.source.problems import Level
from noetl_playbook.templates.render_record import SlowRenderError
from noetl_playbook.views.payload_handle import PayloadNeeded
from noetl_replay.state import build_empty_state
from noetl_storage.ports.errors import PayloadMissing

EVENTS_MAX = 20_000
_PAGE_EVENTS = 1000
_PAYLOAD_BYTES_MAX = 64 * 1024 * 1024


class CounterfactualBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The other version: the text of a playbook and its `scripts`, or a registered one's number."""

    content: Annotated[str, Meta(min_length=1)] | None = None
    scripts: catalog_entries.Scripts | None = None
    version: int | None = None


class EndOfStep(Struct, frozen=True, kw_only=True):
    """How an activation ended, and the steps that followed it."""

    status: str
    targets: list[str]
    error: str | None = None


class ComparedStep(Struct, frozen=True, kw_only=True):
    """An activation of a step, as it was and as it would have been; None where it was not.

    `basis` says what the other decision rests on: a `recorded` outcome of equal work, one that is
    `assumed` since the work differs, nothing (`unknown`), or no work at all (`decided`).
    """

    step: str
    number: int
    is_equal: bool
    recorded: EndOfStep | None
    decided: EndOfStep | None
    basis: Basis | None = None


class CounterfactualReport(Struct, frozen=True, kw_only=True):
    """An execution beside what another version of its playbook would have made of it.

    `steps` are in the order in which they ended. `decided_status` is `UNDECIDED` where work was
    asked for that this execution never did.
    """

    execution_id: str
    path: str
    recorded_version: int
    is_equal: bool
    recorded_status: str
    decided_status: str
    steps: list[ComparedStep]


@post("/executions/{execution_id:str}/counterfactual", status_code=HTTP_200_OK, tags=["executions"])
async def decide_counterfactual(
    services: Services, execution_id: FromPath[str], data: JSONBody[CounterfactualBody]
) -> CounterfactualReport:
    """Decide an execution's outcomes under another version of its playbook; nothing is run."""
    return await _decide_under(services, execution_id, data, as_of=None)


@get("/executions/{execution_id:str}/counterfactual", tags=["executions"])
async def show_counterfactual(
    services: Services,
    execution_id: FromPath[str],
    other: Annotated[int | None, QueryParameter(ge=-NUMBER_MAX, le=NUMBER_MAX)] = None,
    as_of: Annotated[int | None, QueryParameter(ge=1, le=NUMBER_MAX)] = None,
) -> CounterfactualReport:
    """Decide an execution's outcomes under another registered version; nothing is run.

    `as_of` may name the last version of its history alone: it is decided again as a whole.
    """
    if other is None:
        raise problems.build_bad_request_error(
            "no other version is named", hint="name a registered one: ?other=2"
        )
    return await _decide_under(
        services, execution_id, CounterfactualBody(version=other), as_of=as_of
    )


async def _decide_under(
    services: ApiServices, execution_id: str, other: CounterfactualBody, *, as_of: int | None
) -> CounterfactualReport:
    head = await cuts.get_history_head(
        services,
        execution_lookup.check_execution_id(execution_id),
        tenant_id=services.tenant_id,
        organization_id=services.organization_id,
    )
    if as_of not in (None, head.version):
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="decided_as_a_whole",
            detail=f"execution {head.execution_id} is decided again up to its end, version "
            f"{head.version}, and not up to {as_of}",
            hint="leave out as_of",
        )
    history = await _read_history(services, head)
    assert history.request is not None, "a usable history has its request"
    entry = await _find_other_entry(services, history.request.path, other)
    earlier = await services.playbooks.catalog.get_entry(history.request.catalog_id)
    recorded = await _decide_history(services, head, history, earlier)
    decided = await _decide_history(services, head, history, entry)
    _check_decided_again(history, recorded)
    return _build_report(head.execution_id, history, recorded, decided)


async def _read_history(services: ApiServices, head: HistoryHead) -> RecordedHistory:
    if head.version > EVENTS_MAX:
        raise ApiError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            code="history_too_long",
            detail=f"the history has {head.version} events, a counterfactual reads {EVENTS_MAX}",
            hint="run the other version on a part of the inputs: noetl run FILE",
        )
    envelopes: list[Envelope] = []
    while len(envelopes) < head.version:
        page = await services.history.ledger.read_events(
            head.execution_id, after_version=len(envelopes), events_max=_PAGE_EVENTS
        )
        if not page:
            break
        envelopes += page
    history = recorded_outcomes.read_history(envelopes)
    reason = history.unusable or ("it never began" if history.request is None else None)
    if reason is None and not recorded_outcomes.is_terminal_status(history.status):
        reason = "it has not ended"
    if reason is not None:
        raise _build_cannot_decide_error(head.execution_id, reason)
    return history


def _build_cannot_decide_error(execution_id: ExecutionId, reason: str) -> ApiError:
    return ApiError(
        HTTPStatus.CONFLICT,
        code="cannot_decide_again",
        detail=f"the outcomes of execution {execution_id} cannot be decided again: {reason}",
        hint="run the other version instead: noetl run FILE",
    )


async def _find_other_entry(
    services: ApiServices, path: str, body: CounterfactualBody
) -> CatalogEntry:
    if (body.content is None) == (body.version is None):
        raise problems.build_bad_request_error(
            "name one other version: `content`, the text of a playbook, or `version`, the number "
            "of a registered one"
        )
    if body.content is None:
        return await catalog_entries.get_playbook_entry(services, path, body.version)
    entries = await catalog_entries.read_entries(
        services, body.content, level=Level.TOLERANT, path=None, scripts=body.scripts
    )
    if len(entries) > 1:
        raise problems.build_bad_request_error(
            f"the text holds {len(entries)} playbooks, and a counterfactual decides one",
            hint="send its own document",
        )
    return entries[0]


async def _decide_history(
    services: ApiServices, head: HistoryHead, history: RecordedHistory, entry: CatalogEntry
) -> Counterfactual:
    """Decide fact by fact until the end, and load each payload that a template reads."""
    values = DecisionValues(PayloadCache(services.payloads, bytes_max=_PAYLOAD_BYTES_MAX))
    counterfactual = Counterfactual(
        Program(
            codec.convert_value(entry.model, Playbook),
            catalog_id=entry.catalog_id,
            catalog_version=entry.version,
            digest=entry.digest,
        ),
        history,
        state=build_empty_state(head.execution_id, **services.tenant_scope),
        loaded=values,
        limits=services.limits,
        make_renders=begin_renders,
    )
    goes_on = True
    while goes_on:
        if len(counterfactual.envelopes) > EVENTS_MAX:
            raise _build_cannot_decide_error(
                head.execution_id, f"the other version leads to more than {EVENTS_MAX} events"
            )
        goes_on = await _decide_next(head.execution_id, counterfactual, values)
        # Other requests have their turn between two decisions.
        await asyncio.sleep(0)
    return counterfactual


async def _decide_next(
    execution_id: ExecutionId, counterfactual: Counterfactual, values: DecisionValues
) -> bool:
    try:
        return counterfactual.decide_next()
    except PayloadNeeded as needed:
        ref = needed.stored.reference
        if not values.has_room_for(ref, bytes_max=_PAYLOAD_BYTES_MAX, values_max=EVENTS_MAX):
            raise _build_cannot_decide_error(
                execution_id, f"its templates read more than {_PAYLOAD_BYTES_MAX} bytes of results"
            ) from needed
        try:
            await values.load_payload(ref)
        except (*UNREADABLE, PayloadMissing) as failure:
            raise _build_cannot_decide_error(
                execution_id, f"a result that a template reads is gone: {failure}"
            ) from failure
        return True
    except SlowRenderError as failure:
        raise _build_cannot_decide_error(
            execution_id, "one of its templates takes too long to be tried here"
        ) from failure
    except StateNeeded as needed:
        raise _build_cannot_decide_error(
            execution_id, f"it reads the state {needed.name!r} of an increment"
        ) from needed
    except Refusal as refusal:
        raise _build_cannot_decide_error(execution_id, refusal.error.message) from refusal


def _check_decided_again(history: RecordedHistory, recorded: Counterfactual) -> None:
    """Check that the execution's own playbook decides as it did; raises a 409 where it does not.

    Else the comparison would tell of what this method leaves out, such as timers and signals.
    """
    then = {outcome.key: (outcome.status, outcome.targets) for outcome in history.steps}
    now = {outcome.key: (outcome.status, outcome.targets) for outcome in recorded.list_steps()}
    differing = [key for key in sorted(then.keys() | now.keys()) if then.get(key) != now.get(key)]
    if differing:
        raise _build_cannot_decide_error(
            recorded.state.execution_id,
            f"from the recorded outcomes alone, activation {differing[0].number} of step "
            f"{differing[0].step!r} does not come to what it came to",
        )
    if recorded.status != history.status:
        raise _build_cannot_decide_error(
            recorded.state.execution_id,
            f"it ended as {history.status}, which its recorded outcomes alone do not lead to",
        )


def _build_report(
    execution_id: ExecutionId,
    history: RecordedHistory,
    recorded: Counterfactual,
    decided: Counterfactual,
) -> CounterfactualReport:
    assert history.request is not None, "a usable history has its request"
    then = {outcome.key: outcome for outcome in history.steps}
    now = {step.key: step for step in counterfactuals.compare_work(recorded, decided)}
    ordered = [*now, *(key for key in then if key not in now)]
    steps = [_compare_step(key, then.get(key), now.get(key)) for key in ordered]
    return CounterfactualReport(
        execution_id=execution_id,
        path=history.request.path,
        recorded_version=history.request.catalog_version,
        is_equal=history.status == decided.status and all(step.is_equal for step in steps),
        recorded_status=history.status,
        decided_status=decided.status,
        steps=steps,
    )


def _compare_step(key: RunKey, then: StepOutcome | None, now: DecidedStep | None) -> ComparedStep:
    recorded = None if then is None else _view_outcome(then)
    decided = None if now is None or now.outcome is None else _view_outcome(now.outcome)
    return ComparedStep(
        step=key.step,
        number=key.number,
        is_equal=(then is None) == (now is None) and recorded == decided,
        recorded=recorded,
        decided=decided,
        basis=None if now is None else now.basis,
    )


def _view_outcome(outcome: StepOutcome) -> EndOfStep:
    return EndOfStep(
        status=outcome.status.value,
        targets=list(outcome.targets),
        error=None if outcome.error is None else outcome.error.message,
    )


ROUTES = [decide_counterfactual, show_counterfactual]
