"""Streams: each chunk activates the targets of its arcs; the producer ends after all of them.

A target has one run a stream, whose units are the activations: its state is a loop's counters and
the chunks that wait or run. A chunk is accepted when all its activations are dispatched, and the
worker that streams is told so: it goes on while few enough are not accepted.
"""

from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec, facts, ids
from noetl_contracts.chunks import Chunk, Taken
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import loop as loop_events
from noetl_contracts.events import step, stream
from noetl_contracts.status import RunStatus
from noetl_planner.domain import (
    admission,
    announcing,
    bounds,
    evaluation,
    failure_policy,
    growth,
    issuing,
    limits,
    patches,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome, Refusal
from noetl_playbook import aliases, chunks
from noetl_playbook.model import Arc
from noetl_playbook.scope import Scope
from noetl_replay.state import CommandState, LoopState, RunState, StreamState

MODE = "stream"
IN_FLIGHT = 4
_STOPPED = "the stream ends early"


class Ended(Struct, frozen=True, kw_only=True):
    """A run that streamed is over, and so are all activations of its chunks."""

    run: RunState
    outcome: Outcome


def streams(draft: Draft, name: str) -> bool:
    """Tell whether a step emits chunks."""
    return any(task.stream is not None for task in draft.program.steps[name].tool)


def is_part(run: RunState) -> bool:
    """Tell whether a run has emitted chunks, or handles those of another."""
    return run.stream is not None or run.feed is not None


def counts(run: RunState) -> dict[str, int]:
    """Count a stream's chunks as `event.chunks` shows them."""
    live = run.stream
    if live is None:
        return {"total": 0, "done": 0, "failed": 0}
    return {"total": live.received, "done": live.done, "failed": live.failed}


def receive(draft: Draft, live: CommandState, fact: facts.ChunkEmitted) -> Ended | None:
    """Take the next chunk in; what came before is answered, what comes too early is sent again."""
    run = draft.state.runs[live.run_id]
    received = run.stream.received if run.stream is not None else 0
    if fact.index != received:
        _tell(draft, run, live)
        return None
    chunk = Chunk(index=fact.index, row_count=fact.row_count, ref=fact.ref, has_more=fact.has_more)
    try:
        arcs, patch = _route(draft, run, chunk)
        for arc in arcs:
            _begin(draft, run, arc)
    except Refusal as refusal:
        return abort(draft, run, refusal.error)
    draft.emit(
        stream.CallPartial(
            step=live.step,
            run_id=live.run_id,
            command_id=live.command_id,
            attempt=live.attempt,
            chunk=chunk,
            targets=[arc.step for arc in arcs],
            patch=patch,
        )
    )
    return go_on(draft, run)


def go_on(draft: Draft, run: RunState) -> Ended | None:
    """Dispatch what may be dispatched; return the end of a stream that is over."""
    producer = _producer(draft, run)
    live = _live(producer)
    definition = draft.program.steps[producer.step]
    is_stopping = failure_policy.stops_early(definition, _as_loop(producer))
    if is_stopping:
        _call_off(draft, producer)
    targets = _targets(draft, producer)
    for target in targets:
        _dispatch(draft, target, is_stopping=is_stopping)
    answer(draft, producer)
    if not live.has_ended:
        return None
    for target in targets:
        loop = _loop(target)
        if loop.in_flight == 0 and (is_stopping or loop.next_index >= loop.total):
            draft.to_collect[target.run_id] = None
    return None if targets else Ended(run=producer, outcome=_verdict(draft, producer))


def collected(draft: Draft, run: RunState, fact: facts.ItemsCollected) -> Ended | None:
    """End a target whose results have been gathered."""
    loop = _loop(run)
    about: dict[str, Any] = {
        "step": run.step,
        "run_id": run.run_id,
        "stats": _stats(loop),
        "result": fact.result,
    }
    producer = _producer(draft, run)
    has_failed = fact.error is not None or loop.failed or loop.cancelled
    status = RunStatus.FAILED if has_failed else RunStatus.COMPLETED
    if status is RunStatus.COMPLETED:
        draft.emit(loop_events.LoopDone(**about))
    else:
        error = fact.error or _chunk_failed(run.step, loop, loop.first_error)
        draft.emit(loop_events.LoopFailed(error=error, **about))
    announcing.announce(draft, run, status)
    draft.emit(step.StepExit(step=run.step, run_id=run.run_id, status=status, tasks=run.tasks))
    return go_on(draft, producer)


def abort(draft: Draft, run: RunState, error: ErrorObject) -> Ended:
    """End a stream at once, with all that handles its chunks."""
    producer = _producer(draft, run)
    if run is not producer:
        error = _chunk_failed(producer.step, _as_loop(producer), error)
    _call_off(draft, producer)
    for target in _targets(draft, producer):
        draft.emit(
            step.StepExit(
                step=target.step,
                run_id=target.run_id,
                status=RunStatus.CANCELLED,
                tasks=target.tasks,
            )
        )
    return Ended(run=producer, outcome=Outcome(status=RunStatus.FAILED, error=error))


def answer(draft: Draft, run: RunState) -> None:
    """Tell the worker that streams how far the planner is."""
    live = draft.state.commands.get(run.stream.command_id) if run.stream is not None else None
    if live is not None:
        _tell(draft, run, live)


def _tell(draft: Draft, run: RunState, live: CommandState) -> None:
    received = accepted = run.stream.received if run.stream is not None else 0
    for target in _targets(draft, run):
        loop = _loop(target)
        if target.feed is not None and loop.next_index < loop.total:
            accepted = min(accepted, target.feed.open[loop.next_index].index)
    draft.taken[live.command_id] = Taken(received=received, accepted=accepted)


def _route(draft: Draft, run: RunState, chunk: Chunk) -> tuple[list[Arc], dict[str, Any]]:
    """Choose the arcs of a chunk, and render what they write; raises `Refusal`."""
    event = {
        "name": aliases.event_name(aliases.PARTIAL),
        "status": aliases.OK,
        "step": run.step,
        "timestamp": draft.now,
    }
    bound = {**chunks.names(chunk, evaluation.find(draft)), "event": event}
    names = evaluation.scope(draft, **bound)
    chosen = [arc for arc in _choose(draft, run, names) if _is_admitted(draft, arc, names)]
    patch: dict[str, Any] = {}
    for arc in chosen:
        if arc.set:
            # A block sees what the blocks before it have written.
            seen = evaluation.scope(draft, patch, **bound)
            ctx = {**draft.state.ctx, **patch}
            patch.update(patches.render_set(draft, arc.set, seen, ctx, step=run.step))
    patch, refused = growth.carried(draft, patch, step=run.step)
    if refused is not None:
        raise Refusal(refused)
    return list({arc.step: arc for arc in reversed(chosen)}.values())[::-1], patch


def _choose(draft: Draft, run: RunState, names: Scope) -> list[Arc]:
    following = draft.program.steps[run.step].next
    if following is None:
        return []
    chosen: list[Arc] = []
    for index, arc in enumerate(following.arcs):
        if arc.on != aliases.PARTIAL:
            continue
        field = f"next.arcs[{index}].when"
        if arc.when is None or evaluation.holds(arc.when, names, step=run.step, field=field):
            chosen.append(arc)
            if following.spec.mode == "exclusive":
                break
    return chosen


def _is_admitted(draft: Draft, arc: Arc, names: Scope) -> bool:
    denied = admission.judge(draft, arc.step, names)
    if denied is not None and denied.error is not None:
        raise Refusal(denied.error)
    return denied is None


def _begin(draft: Draft, producer: RunState, arc: Arc) -> None:
    """Give a target its run when the first chunk comes; raises `Refusal`."""
    if producer.stream is not None and arc.step in producer.stream.targets:
        return
    state = draft.state
    activation = state.activations + 1
    if activation > draft.limits.activations_max:
        most = draft.limits.activations_max
        text = f"more than {most} step activations: raise limits.max_steps or end the cycle"
        raise Refusal.over("max_steps", arc.step, text)
    written = arc.spec.max_in_flight
    in_flight = limits.in_flight(
        draft,
        IN_FLIGHT if written is None else written,
        is_default=written is None,
        step=producer.step,
        field="next.arcs.spec.max_in_flight",
    )
    run_id = ids.run_id(state.execution_id, activation)
    draft.emit(
        step.StepEnter(
            step=arc.step,
            run_id=run_id,
            activation=activation,
            came_from=producer.step,
            expires_at=bounds.of_run(draft, arc.step),
            stream_of=producer.run_id,
        )
    )
    draft.emit(
        loop_events.LoopStarted(
            step=arc.step, run_id=run_id, mode=MODE, max_in_flight=in_flight, total=0
        )
    )


def _dispatch(draft: Draft, target: RunState, *, is_stopping: bool) -> None:
    loop = _loop(target)
    if is_stopping or draft.state.paused_at is not None:
        return
    while loop.next_index < loop.total and loop.in_flight < loop.max_in_flight:
        issuing.issue_item(
            draft, target, loop.next_index, attempts_max=draft.limits.step_attempts_max
        )


def _call_off(draft: Draft, producer: RunState) -> None:
    runs = (
        {producer.run_id, *_live(producer).targets.values()}
        if producer.stream
        else {producer.run_id}
    )
    for live in [one for one in draft.state.commands.values() if one.run_id in runs]:
        draft.to_stop[live.command_id] = None
        issuing.call_off(draft, live, _STOPPED)


def _verdict(draft: Draft, producer: RunState) -> Outcome:
    live, shown = _live(producer), _as_loop(producer)
    error = live.error
    if error is None:
        found = failure_policy.verdict(draft.program.steps[producer.step], shown, _stats(shown))
        error = found and _chunk_failed(producer.step, shown, live.first_error)
    status = RunStatus.COMPLETED if error is None else RunStatus.FAILED
    return Outcome(status=status, error=error)


def _chunk_failed(name: str, loop: LoopState, first: ErrorObject | None) -> ErrorObject:
    message = f"{loop.failed} of {loop.total} chunks of step {name!r} failed"
    if first is not None:
        message += f"; the first: {first.message}"
    details = {"first_error": codec.builtins(first), "stats": codec.builtins(_stats(loop))}
    return ErrorObject(
        kind="chunk_failed", code="CHUNK_FAILED", step=name, message=message, details=details
    )


def _as_loop(producer: RunState) -> LoopState:
    """Show a stream's counters as the failure policy reads them."""
    found = counts(producer)
    return LoopState(
        run_id=producer.run_id,
        step=producer.step,
        mode=MODE,
        max_in_flight=0,
        started_at=producer.entered_at,
        total=found["total"],
        success=found["done"],
        failed=found["failed"],
        first_error=producer.stream.first_error if producer.stream is not None else None,
    )


def _stats(loop: LoopState) -> loop_events.LoopStats:
    counted = loop_events.LoopStats(
        total=loop.total, success=loop.success, failed=loop.failed, retried=loop.retried
    )
    return structs.replace(counted, cancelled=loop.total - loop.success - loop.failed)


def _producer(draft: Draft, run: RunState) -> RunState:
    return run if run.feed is None else draft.state.runs[run.feed.producer]


def _targets(draft: Draft, producer: RunState) -> list[RunState]:
    if producer.stream is None:
        return []
    live = (draft.state.runs.get(one) for one in producer.stream.targets.values())
    return [run for run in live if run is not None]


def _live(producer: RunState) -> StreamState:
    assert producer.stream is not None, "only runs that stream come here"
    return producer.stream


def _loop(target: RunState) -> LoopState:
    assert target.loop is not None, "a stream's target counts its activations"
    return target.loop
