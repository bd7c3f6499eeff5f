"""Where a command is best done, whom it is offered to first, and when the offer ends."""

from datetime import datetime, timedelta

from msgspec import structs

from noetl_contracts import placement
from noetl_contracts.ids import CommandId, WorkerId
from noetl_contracts.workers import nearest
from noetl_planner.domain.draft import Draft
from noetl_replay.state import CommandState, RunState, StepState


def source(draft: Draft, run: RunState) -> dict[str, str]:
    """Return what the places share where a run's inputs were made that are kept by reference.

    What travels within the command is nearest everywhere; of it nothing is said.
    """
    mentioned = draft.program.names(run.step)
    reduce = draft.program.steps[run.step].reduce
    sources = frozenset(reduce.from_) if reduce is not None else frozenset()
    # Names are looked up, as a playbook may have far more steps than one of them names.
    steps = draft.state.steps
    named = [steps[name] for name in sorted(mentioned - sources) if name in steps]
    if run.came_from in steps and run.came_from not in mentioned | sources:
        named.append(steps[run.came_from])
    reduced = [steps[name].locality for name in sorted(sources) if name in steps]
    return placement.common_of(
        [*reduced, *(step.locality for step in named if _is_by_reference(step))]
    )


def offer(
    draft: Draft, inputs: placement.Place, *, pool: str, host: str
) -> tuple[WorkerId, datetime] | None:
    """Choose who may take a command before all others, and until when; None: anybody may."""
    is_streamed = pool not in draft.limits.pools.by_http
    if not (inputs and draft.workers and draft.limits.offer_s and is_streamed):
        return None
    seen = [
        structs.replace(beat, running=beat.running + draft.offered_to[beat.worker_id, host])
        for beat in draft.workers
    ]
    chosen = nearest(inputs, seen, pool=pool, lane=host)
    if chosen is None:
        return None
    draft.offered_to[chosen, host] += 1
    return chosen, draft.now + timedelta(seconds=draft.limits.offer_s)


def grant(draft: Draft, live: CommandState, worker_id: WorkerId) -> None:
    """Tell a worker to whom a command was offered that it has it; hints get lost, so again."""
    if live.target is not None and live.target == worker_id == live.worker_id:
        draft.granted[live.command_id] = live.attempt


def list_untaken(draft: Draft) -> list[CommandId]:
    """List the commands whose offer has ended and that nobody has."""
    return [one for one, until in draft.state.offered.items() if until <= draft.now]


def _is_by_reference(step: StepState) -> bool:
    return step.result is not None and step.result.reference is not None
