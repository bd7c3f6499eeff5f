"""Informational events that a step appends at its end (language, 11.1)."""

from collections.abc import Mapping
from typing import Any

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import execution_events
from noetl_contracts.events.execution_events import ATTRIBUTES_BYTES_MAX, BusinessObjectChanged
from noetl_contracts.status import RunStatus
from noetl_planner.domain.decision import evaluation
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import EmittedObject
from noetl_playbook.templates.lookup import Record
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views import error_view
from noetl_replay.state import RunState, StepState

# What the event of a failure, a loop or a stream has alone.
_SOMETIMES = frozenset({"error", "stats", "chunks"})
OBJECTS_MAX = 1000
ID_CHARACTERS_MAX = 200


def emit_custom_events(draft: DecisionDraft, run: RunState, status: RunStatus) -> None:
    """Append the step's own events, each name once."""
    names = draft.program.steps[run.step].spec.policy.emit.events
    for name in dict.fromkeys(names):
        draft.append_event(
            execution_events.CustomEvent(
                name=name, step=run.step, run_id=run.run_id, status=str(status)
            )
        )


def build_step_end_event(
    draft: DecisionDraft, step: StepState, *, status: RunStatus, error: ErrorObject | None
) -> dict[str, Any]:
    """Show how a step ended; `payload` is its result (language, 3.7 and 4.3)."""
    has_failed = status is RunStatus.FAILED
    is_loop = draft.program.steps[step.step].loop is not None
    if is_loop:
        name = language_names.LOOP_FAILED if has_failed else language_names.LOOP_DONE
    else:
        name = language_names.ERROR if has_failed else language_names.DONE
    fields: dict[str, Any] = {
        "name": language_names.alias_event_name(name),
        "status": language_names.FAILED if has_failed else language_names.OK,
        "step": step.step,
        "payload": evaluation.view_result(draft, step),
        "timestamp": draft.now,
    }
    if error is not None:
        fields["error"] = error_view.show_error_record(error)
    return Record(fields, optional=_SOMETIMES)


def render_business_objects(
    draft: DecisionDraft, run: RunState, names: TemplateScope
) -> list[BusinessObjectChanged]:
    """Return what a step says of its objects; raises `Refusal` for what no event may hold."""
    emitted = draft.program.steps[run.step].spec.policy.emit.objects
    object_by_place: dict[str, BusinessObjectChanged] = {}
    for index, emitted_object in enumerate(emitted):
        place = f"spec.policy.emit.objects[{index}]"
        if emitted_object.when is not None and not evaluation.is_condition_true(
            emitted_object.when, names, step=run.step, field=f"{place}.when"
        ):
            continue
        changed = _render_business_object(draft, run, names, emitted_object, place)
        object_by_place[changed.object_id] = changed
    fresh = sum(name not in draft.state.objects for name in object_by_place)
    if fresh and len(draft.state.objects) + fresh > OBJECTS_MAX:
        raise Refusal.for_step(
            "limit",
            run.step,
            f"an execution may have {OBJECTS_MAX} objects: keep many of them in a table",
        )
    return list(object_by_place.values())


def _render_business_object(
    draft: DecisionDraft,
    run: RunState,
    names: TemplateScope,
    emitted_object: EmittedObject,
    place: str,
) -> BusinessObjectChanged:
    identity = evaluation.render_value(emitted_object.id, names, step=run.step, field=f"{place}.id")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise Refusal.for_step("validation", run.step, f"{place}.id is neither a text nor a number")
    if len(str(identity)) > ID_CHARACTERS_MAX:
        raise Refusal.for_step(
            "validation", run.step, f"{place}.id has more than {ID_CHARACTERS_MAX} characters"
        )
    attributes = evaluation.render_value(
        emitted_object.attributes, names, step=run.step, field=f"{place}.attributes"
    )
    if not isinstance(attributes, Mapping):
        raise Refusal.for_step("validation", run.step, f"{place}.attributes is not a mapping")
    status = evaluation.render_value(
        emitted_object.status, names, step=run.step, field=f"{place}.status"
    )
    plain = codec.to_builtins(dict(attributes))
    size_bytes = len(codec.encode_json(plain))
    if size_bytes > ATTRIBUTES_BYTES_MAX:
        raise Refusal.for_step(
            "limit",
            run.step,
            f"{place}.attributes take {size_bytes} bytes, {ATTRIBUTES_BYTES_MAX} are allowed: keep "
            "what is large in the step's result, to which the object refers",
        )
    result = draft.state.steps[run.step].result
    return BusinessObjectChanged(
        object_type=emitted_object.type,
        object_id=f"{emitted_object.type}/{identity}",
        step=run.step,
        run_id=run.run_id,
        status=None if status is None else str(status),
        attributes=plain,
        result_ref=None if result is None else result.reference,
        is_deleted=emitted_object.deleted,
    )
