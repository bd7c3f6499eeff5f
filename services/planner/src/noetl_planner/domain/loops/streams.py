"""Streams: each chunk activates the targets of its arcs; the producer ends after all of them.

A target has one run a stream, whose units are the activations: its state is a loop's counters and
the chunks that wait or run. A chunk is accepted when all its activations are dispatched, and the
worker that streams is told so: it goes on while few enough are not accepted.
"""

from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Chunk, StreamProgress
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import loop_events, step_events
from noetl_contracts.requests import facts
from noetl_contracts.status import RunStatus
from noetl_planner.domain.decision import ctx_writes, evaluation, limits
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal, RunOutcome
from noetl_planner.domain.steps import commands, policies, step_end_events
from noetl_playbook.model import language_names
from noetl_playbook.model.playbook import Arc
from noetl_playbook.templates.scope import TemplateScope
from noetl_playbook.views import output_view
from noetl_replay.state import CommandState, LoopState, RunState, StreamState

MODE = "stream"
IN_FLIGHT = 4
_STOPPED = "the stream ends early"


class StreamEnd(Struct, frozen=True, kw_only=True):
    """A run that streamed is over, and so are all activations of its chunks."""

    run: RunState
    outcome: RunOutcome


def is_stream_step(draft: DecisionDraft, name: str) -> bool:
    """Tell whether a step emits chunks."""
    return any(task.stream is not None for task in draft.program.steps[name].tool)


def is_stream_run(run: RunState) -> bool:
    """Tell whether a run has emitted chunks, or handles those of another."""
    return run.stream is not None or run.feed is not None


def count_chunks(run: RunState) -> dict[str, int]:
    """Count a stream's chunks as `event.chunks` shows them."""
    stream_state = run.stream
    if stream_state is None:
        return {"total": 0, "done": 0, "failed": 0}
    return {
        "total": stream_state.received,
        "done": stream_state.done,
        "failed": stream_state.failed,
    }


def receive_chunk(
    draft: DecisionDraft, command_state: CommandState, fact: facts.ChunkEmitted
) -> StreamEnd | None:
    """Take the next chunk in; what came before is answered, what comes too early is sent again."""
    run = draft.state.runs[command_state.run_id]
    received = run.stream.received if run.stream is not None else 0
    if fact.index != received:
        _record_accepted_chunks(draft, run, command_state)
        return None
    chunk = Chunk(index=fact.index, row_count=fact.row_count, ref=fact.ref, has_more=fact.has_more)
    try:
        arcs, patch = _route_chunk(draft, run, chunk)
        for arc in arcs:
            _start_target(draft, run, arc)
    except Refusal as refusal:
        return abort_stream(draft, run, refusal.error)
    draft.append_event(
        step_events.CallPartial(
            step=command_state.step,
            run_id=command_state.run_id,
            command_id=command_state.command_id,
            attempt=command_state.attempt,
            chunk=chunk,
            targets=[arc.step for arc in arcs],
            patch=patch,
        )
    )
    return continue_stream(draft, run)


def continue_stream(draft: DecisionDraft, run: RunState) -> StreamEnd | None:
    """Dispatch what may be dispatched; return the end of a stream that is over."""
    producer = _get_producer(draft, run)
    stream_state = _get_stream(producer)
    definition = draft.program.steps[producer.step]
    is_stopping = policies.has_exceeded_failures(definition, _view_as_loop(producer))
    if is_stopping:
        _cancel_stream_commands(draft, producer)
    targets = _list_targets(draft, producer)
    for target in targets:
        _dispatch_chunks(draft, target, is_stopping=is_stopping)
    report_accepted_chunks(draft, producer)
    if not stream_state.has_ended:
        return None
    for target in targets:
        loop = _get_target_loop(target)
        if loop.in_flight == 0 and (is_stopping or loop.next_index >= loop.total):
            draft.to_collect[target.run_id] = None
    return None if targets else StreamEnd(run=producer, outcome=_stream_outcome(draft, producer))


def end_collected_target(
    draft: DecisionDraft, run: RunState, fact: facts.ItemsCollected
) -> StreamEnd | None:
    """End a target whose results have been gathered."""
    loop = _get_target_loop(run)
    about: dict[str, Any] = {
        "step": run.step,
        "run_id": run.run_id,
        "stats": _chunk_stats(loop),
        "result": fact.result,
    }
    producer = _get_producer(draft, run)
    has_failed = fact.error is not None or loop.failed or loop.cancelled
    status = RunStatus.FAILED if has_failed else RunStatus.COMPLETED
    if status is RunStatus.COMPLETED:
        draft.append_event(loop_events.LoopDone(**about))
    else:
        error = fact.error or _build_chunk_failure_error(run.step, loop, loop.first_error)
        draft.append_event(loop_events.LoopFailed(error=error, **about))
    step_end_events.emit_custom_events(draft, run, status)
    draft.append_event(
        step_events.StepExit(step=run.step, run_id=run.run_id, status=status, tasks=run.tasks)
    )
    return continue_stream(draft, producer)


def abort_stream(draft: DecisionDraft, run: RunState, error: ErrorObject) -> StreamEnd:
    """End a stream at once, with all that handles its chunks."""
    producer = _get_producer(draft, run)
    if run is not producer:
        error = _build_chunk_failure_error(producer.step, _view_as_loop(producer), error)
    _cancel_stream_commands(draft, producer)
    for target in _list_targets(draft, producer):
        draft.append_event(
            step_events.StepExit(
                step=target.step,
                run_id=target.run_id,
                status=RunStatus.CANCELLED,
                tasks=target.tasks,
            )
        )
    return StreamEnd(run=producer, outcome=RunOutcome(status=RunStatus.FAILED, error=error))


def report_accepted_chunks(draft: DecisionDraft, run: RunState) -> None:
    """Tell the worker that streams how far the planner is."""
    command_state = (
        draft.state.commands.get(run.stream.command_id) if run.stream is not None else None
    )
    if command_state is not None:
        _record_accepted_chunks(draft, run, command_state)


def _record_accepted_chunks(
    draft: DecisionDraft, run: RunState, command_state: CommandState
) -> None:
    received = accepted = run.stream.received if run.stream is not None else 0
    for target in _list_targets(draft, run):
        loop = _get_target_loop(target)
        if target.feed is not None and loop.next_index < loop.total:
            accepted = min(accepted, target.feed.open[loop.next_index].index)
    draft.stream_progress[command_state.command_id] = StreamProgress(
        received=received, accepted=accepted
    )


def _route_chunk(
    draft: DecisionDraft, run: RunState, chunk: Chunk
) -> tuple[list[Arc], dict[str, Any]]:
    """Choose the arcs of a chunk, and render what they write; raises `Refusal`."""
    event = {
        "name": language_names.alias_event_name(language_names.PARTIAL),
        "status": language_names.OK,
        "step": run.step,
        "timestamp": draft.now,
    }
    bound = {
        **output_view.build_chunk_names(chunk, evaluation.make_value_finder(draft)),
        "event": event,
    }
    names = evaluation.build_scope(draft, **bound)
    chosen = [arc for arc in _choose_arcs(draft, run, names) if _is_arc_admitted(draft, arc, names)]
    patch: dict[str, Any] = {}
    for arc in chosen:
        if arc.set:
            # A block sees what the blocks before it have written.
            scope = evaluation.build_scope(draft, patch, **bound)
            ctx = {**draft.state.ctx, **patch}
            patch.update(ctx_writes.render_set_block(draft, arc.set, scope, ctx, step=run.step))
    patch, refused = ctx_writes.store_ctx_patch(draft, patch, step=run.step)
    if refused is not None:
        raise Refusal(refused)
    return list({arc.step: arc for arc in reversed(chosen)}.values())[::-1], patch


def _choose_arcs(draft: DecisionDraft, run: RunState, names: TemplateScope) -> list[Arc]:
    following = draft.program.steps[run.step].next
    if following is None:
        return []
    chosen: list[Arc] = []
    for index, arc in enumerate(following.arcs):
        if arc.on != language_names.PARTIAL:
            continue
        field = f"next.arcs[{index}].when"
        if arc.when is None or evaluation.is_condition_true(
            arc.when, names, step=run.step, field=field
        ):
            chosen.append(arc)
            if following.spec.mode == "exclusive":
                break
    return chosen


def _is_arc_admitted(draft: DecisionDraft, arc: Arc, names: TemplateScope) -> bool:
    denied = policies.evaluate_admission(draft, arc.step, names)
    if denied is not None and denied.error is not None:
        raise Refusal(denied.error)
    return denied is None


def _start_target(draft: DecisionDraft, producer: RunState, arc: Arc) -> None:
    """Give a target its run when the first chunk comes; raises `Refusal`."""
    if producer.stream is not None and arc.step in producer.stream.targets:
        return
    state = draft.state
    activation = state.activations + 1
    if activation > draft.limits.activations_max:
        most = draft.limits.activations_max
        text = f"more than {most} step activations: raise limits.max_steps or end the cycle"
        raise Refusal.for_limit("max_steps", arc.step, text)
    written = arc.spec.max_in_flight
    in_flight = limits.check_in_flight(
        draft,
        IN_FLIGHT if written is None else written,
        is_default=written is None,
        step=producer.step,
        field="next.arcs.spec.max_in_flight",
    )
    run_id = ids.derive_run_id(state.execution_id, activation)
    draft.append_event(
        step_events.StepEnter(
            step=arc.step,
            run_id=run_id,
            activation=activation,
            came_from=producer.step,
            expires_at=limits.compute_run_expiry(draft, arc.step),
            due_at=limits.compute_run_deadline(draft, arc.step),
            stream_of=producer.run_id,
        )
    )
    draft.append_event(
        loop_events.LoopStarted(
            step=arc.step, run_id=run_id, mode=MODE, max_in_flight=in_flight, total=0
        )
    )


def _dispatch_chunks(draft: DecisionDraft, target: RunState, *, is_stopping: bool) -> None:
    loop = _get_target_loop(target)
    if is_stopping or draft.state.paused_at is not None:
        return
    while loop.next_index < loop.total and loop.in_flight < loop.max_in_flight:
        commands.issue_item(
            draft, target, loop.next_index, attempts_max=draft.limits.step_attempts_max
        )


def _cancel_stream_commands(draft: DecisionDraft, producer: RunState) -> None:
    runs = (
        {producer.run_id, *_get_stream(producer).targets.values()}
        if producer.stream
        else {producer.run_id}
    )
    for command_state in [
        command for command in draft.state.commands.values() if command.run_id in runs
    ]:
        draft.to_stop[command_state.command_id] = None
        commands.cancel_command(draft, command_state, _STOPPED)


def _stream_outcome(draft: DecisionDraft, producer: RunState) -> RunOutcome:
    stream_state, loop_view = _get_stream(producer), _view_as_loop(producer)
    error = stream_state.error
    if error is None:
        error_object = policies.find_loop_failure(
            draft.program.steps[producer.step], loop_view, _chunk_stats(loop_view)
        )
        error = error_object and _build_chunk_failure_error(
            producer.step, loop_view, stream_state.first_error
        )
    status = RunStatus.COMPLETED if error is None else RunStatus.FAILED
    return RunOutcome(status=status, error=error)


def _build_chunk_failure_error(
    name: str, loop: LoopState, first: ErrorObject | None
) -> ErrorObject:
    message = f"{loop.failed} of {loop.total} chunks of step {name!r} failed"
    if first is not None:
        message += f"; the first: {first.message}"
    details = {
        "first_error": codec.to_builtins(first),
        "stats": codec.to_builtins(_chunk_stats(loop)),
    }
    return ErrorObject(
        kind="chunk_failed", code="CHUNK_FAILED", step=name, message=message, details=details
    )


def _view_as_loop(producer: RunState) -> LoopState:
    """Show a stream's counters as the failure policy reads them."""
    chunks = count_chunks(producer)
    return LoopState(
        run_id=producer.run_id,
        step=producer.step,
        mode=MODE,
        max_in_flight=0,
        started_at=producer.entered_at,
        total=chunks["total"],
        success=chunks["done"],
        failed=chunks["failed"],
        first_error=producer.stream.first_error if producer.stream is not None else None,
    )


def _chunk_stats(loop: LoopState) -> loop_events.LoopStats:
    counted = loop_events.LoopStats(
        total=loop.total, success=loop.success, failed=loop.failed, retried=loop.retried
    )
    return structs.replace(counted, cancelled=loop.total - loop.success - loop.failed)


def _get_producer(draft: DecisionDraft, run: RunState) -> RunState:
    return run if run.feed is None else draft.state.runs[run.feed.producer]


def _list_targets(draft: DecisionDraft, producer: RunState) -> list[RunState]:
    if producer.stream is None:
        return []
    runs = (draft.state.runs.get(run_id) for run_id in producer.stream.targets.values())
    return [run for run in runs if run is not None]


def _get_stream(producer: RunState) -> StreamState:
    assert producer.stream is not None, "only runs that stream come here"
    return producer.stream


def _get_target_loop(target: RunState) -> LoopState:
    assert target.loop is not None, "a stream's target counts its activations"
    return target.loop
