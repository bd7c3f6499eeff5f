"""What events mean to streams: chunks received, handed to activations, done with."""

from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events, step_events
from noetl_contracts.ids import RunId
from noetl_replay import fold_loops
from noetl_replay.state import ExecutionState, FeedState, OpenChunk, RunState, StreamState


def receive_chunk(state: ExecutionState, event: step_events.CallPartial) -> None:
    """Apply a chunk's arrival."""
    state.ctx = {**state.ctx, **event.patch}
    run = state.runs.get(event.run_id)
    if run is None:
        return
    stream_state = run.stream
    if stream_state is None:
        stream_state = run.stream = StreamState(command_id=event.command_id)
    stream_state.received += 1
    for name in event.targets:
        _hand_chunk_over(state, stream_state.targets[name], event)
    if event.targets:
        stream_state.open[event.chunk.index] = OpenChunk(open=len(event.targets))
    else:
        stream_state.done += 1


def _hand_chunk_over(state: ExecutionState, run_id: RunId, event: step_events.CallPartial) -> None:
    target = state.runs[run_id]
    loop = fold_loops.touch_loop(state, run_id)
    assert target.feed is not None and loop is not None, "a stream's target was begun before"  # noqa: PT018 - one thing
    target.feed.open[loop.total] = event.chunk
    loop.total += 1


def attach_to_producer(state: ExecutionState, event: step_events.StepEnter) -> None:
    """Tie a run that handles chunks to the run that streams them."""
    if event.stream_of is None:
        return
    state.runs[event.run_id].feed = FeedState(producer=event.stream_of)
    producer = state.runs[event.stream_of]
    if producer.stream is None:
        command_id = next(
            command_state.command_id
            for command_state in state.commands.values()
            if command_state.run_id == event.stream_of
        )
        producer.stream = StreamState(command_id=command_id)
    producer.stream.targets[event.step] = event.run_id


def end_call(state: ExecutionState, event: step_events.CallDone | step_events.CallError) -> None:
    """Account the end of a chunk's activation, or of the task that streams."""
    run = state.runs.get(event.run_id)
    if run is None:
        return
    error = event.error if isinstance(event, step_events.CallError) else None
    if run.feed is not None and event.item_index is not None:
        _close_chunk(state, run, event.item_index, error=error)
    elif run.stream is not None:
        run.stream.has_ended, run.stream.error = True, error


def cancel_activation(state: ExecutionState, event: command_events.CommandCancelled) -> None:
    """Account a cancelled activation, or a task that was stopped while it streamed."""
    run, command_state = state.runs.get(event.run_id), state.commands.get(event.command_id)
    if run is None or command_state is None:
        return
    if run.stream is not None:
        run.stream.has_ended = True
    if run.feed is None or command_state.item_index is None:
        return
    loop = fold_loops.touch_loop(state, event.run_id)
    if loop is not None:
        loop.in_flight -= 1
        loop.cancelled += 1
    run.feed.open.pop(command_state.item_index, None)


def _close_chunk(
    state: ExecutionState, run: RunState, activation: int, *, error: ErrorObject | None
) -> None:
    assert run.feed is not None, "only activations of chunks come here"
    chunk = run.feed.open.pop(activation, None)
    producer = state.runs.get(run.feed.producer)
    stream_state = producer.stream if producer is not None else None
    if chunk is None or stream_state is None or chunk.index not in stream_state.open:
        return
    open_chunk = stream_state.open[chunk.index]
    open_chunk.open -= 1
    open_chunk.has_failed |= error is not None
    stream_state.first_error = stream_state.first_error or error
    if open_chunk.open:
        return
    del stream_state.open[chunk.index]
    stream_state.failed += open_chunk.has_failed
    stream_state.done += not open_chunk.has_failed
