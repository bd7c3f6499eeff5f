"""Loops over a collection: items issued in order, counted as they end, collected at the end."""

from noetl_contracts import codec
from noetl_contracts.events import loop as events
from noetl_planner.domain import (
    ending,
    evaluation,
    failure_policy,
    issuing,
    limits,
    sources,
    taken_items,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome
from noetl_playbook import loops
from noetl_playbook.model import Loop, Step
from noetl_playbook.scope import Scope
from noetl_replay.state import RunState


def start(draft: Draft, run: RunState) -> Outcome | None:
    """Fix the collection and issue the first items."""
    loop = loop_of(draft.program.steps[run.step])
    names = evaluation.scope(draft)
    taken = taken_items.find_taken(draft.state, run)
    if taken is not None:
        draft.emit(
            events.LoopStarted(
                step=run.step,
                run_id=run.run_id,
                mode=loop.spec.mode,
                max_in_flight=in_flight(draft, loop, names, run.step),
                total=taken.total,
                collection_ref=taken.collection_ref,
                collection_form=taken.collection_form,
                taken=taken,
            )
        )
        return go_on(draft, run)
    source = sources.find(draft, loop, names, step=run.step)
    draft.emit(
        events.LoopStarted(
            step=run.step,
            run_id=run.run_id,
            mode=loop.spec.mode,
            max_in_flight=in_flight(draft, loop, names, run.step),
            total=source.total,
            notes=source.notes,
            **sources.keep(draft, source, may_inline=True),
        )
    )
    return go_on(draft, run)


def go_on(draft: Draft, run: RunState) -> Outcome | None:
    """Issue what may be issued; return the outcome of a loop that has ended without results."""
    loop = ending.live_loop(run)
    definition = draft.program.steps[run.step]
    spec = loop_of(definition).spec
    stopping = failure_policy.stops_early(definition, loop)
    if stopping and loop.in_flight:
        ending.call_off(draft, run, failure_policy.FAILED_FAST)
    may_issue = not stopping and draft.state.paused_at is None
    index = taken_items.find_next_item(draft, run, loop)
    while may_issue and index is not None and loop.in_flight < loop.max_in_flight:
        issuing.issue_item(draft, run, index, attempts_max=spec.max_attempts)
        index = taken_items.find_next_item(draft, run, loop)
    if loop.in_flight == 0 and (stopping or index is None):
        return finish(draft, run, collects=spec.collect == "all" and loop.total > 0)
    return None


def finish(draft: Draft, run: RunState, *, collects: bool) -> Outcome | None:
    """Have the results gathered; return the outcome of a loop that has none."""
    if collects:
        draft.to_collect[run.run_id] = None
        return None
    loop = ending.live_loop(run)
    stage = draft.state.stages.get(loop.stage_id) if loop.stage_id is not None else None
    taken = taken_items.find_taken(draft.state, run)
    stats = codec.builtins(ending.stats_of(loop, stage, taken))
    return ending.end(draft, run, evaluation.loop_result([], stats, ending.counters(loop)))


def in_flight(draft: Draft, loop: Loop, names: Scope, step: str) -> int:
    """Render how many units may run at once; raises `Refusal`."""
    if loop.spec.mode == "sequential":
        return 1
    field = "loop.spec.max_in_flight"
    rendered = evaluation.render(loop.spec.max_in_flight, names, step=step, field=field)
    is_default = loops.is_default_in_flight(loop.spec)
    return limits.in_flight(draft, rendered, is_default=is_default, step=step, field=field)


def loop_of(step: Step) -> Loop:
    """Return the loop of a step that has one."""
    assert step.loop is not None, "only loop steps come here"
    return step.loop
