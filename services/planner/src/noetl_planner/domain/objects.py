"""Objects of a playbook's domain that a step's end brings about (`spec.policy.emit.objects`)."""

from collections.abc import Mapping

from noetl_contracts import codec
from noetl_contracts.events.business import ATTRIBUTES_BYTES_MAX, BusinessObjectChanged
from noetl_planner.domain import evaluation
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Refusal
from noetl_playbook.model import EmittedObject
from noetl_playbook.scope import Scope
from noetl_replay.state import RunState

OBJECTS_MAX = 1000
ID_CHARACTERS_MAX = 200


def render(draft: Draft, run: RunState, names: Scope) -> list[BusinessObjectChanged]:
    """Return what a step says of its objects; raises `Refusal` for what no event may hold."""
    emitted = draft.program.steps[run.step].spec.policy.emit.objects
    found: dict[str, BusinessObjectChanged] = {}
    for index, one in enumerate(emitted):
        place = f"spec.policy.emit.objects[{index}]"
        if one.when is not None and not evaluation.holds(
            one.when, names, step=run.step, field=f"{place}.when"
        ):
            continue
        changed = _render(draft, run, names, one, place)
        found[changed.object_id] = changed
    fresh = sum(name not in draft.state.objects for name in found)
    if fresh and len(draft.state.objects) + fresh > OBJECTS_MAX:
        raise Refusal.of(
            "limit",
            run.step,
            f"an execution may have {OBJECTS_MAX} objects: keep many of them in a table",
        )
    return list(found.values())


def _render(
    draft: Draft, run: RunState, names: Scope, one: EmittedObject, place: str
) -> BusinessObjectChanged:
    identity = evaluation.render(one.id, names, step=run.step, field=f"{place}.id")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise Refusal.of("validation", run.step, f"{place}.id is neither a text nor a number")
    if len(str(identity)) > ID_CHARACTERS_MAX:
        raise Refusal.of(
            "validation", run.step, f"{place}.id has more than {ID_CHARACTERS_MAX} characters"
        )
    attributes = evaluation.render(
        one.attributes, names, step=run.step, field=f"{place}.attributes"
    )
    if not isinstance(attributes, Mapping):
        raise Refusal.of("validation", run.step, f"{place}.attributes is not a mapping")
    status = evaluation.render(one.status, names, step=run.step, field=f"{place}.status")
    plain = codec.builtins(dict(attributes))
    taken = len(codec.encode(plain))
    if taken > ATTRIBUTES_BYTES_MAX:
        raise Refusal.of(
            "limit",
            run.step,
            f"{place}.attributes take {taken} bytes, {ATTRIBUTES_BYTES_MAX} are allowed: keep "
            "what is large in the step's result, to which the object refers",
        )
    result = draft.state.steps[run.step].result
    return BusinessObjectChanged(
        object_type=one.type,
        object_id=f"{one.type}/{identity}",
        step=run.step,
        run_id=run.run_id,
        status=None if status is None else str(status),
        attributes=plain,
        result_ref=None if result is None else result.reference,
        is_deleted=one.deleted,
    )
