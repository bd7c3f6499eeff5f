"""What must hold of an append before any store sees it."""

from noetl_contracts.ledger.records import Append, StreamAppend


def check_streams(batch: Append) -> list[StreamAppend]:
    """Return the streams that gain events; raises `ValueError` for what a writer may never send."""
    streams = [stream for stream in batch.streams if stream.envelopes]
    executions = {stream.execution_id for stream in streams}
    if len(executions) < len(streams):
        raise ValueError("an append names an execution twice")
    for stream in streams:
        _check_stream(stream)
    return streams


def _check_stream(stream: StreamAppend) -> None:
    for place, envelope in enumerate(stream.envelopes, start=1):
        expected = stream.expected_version + place
        if envelope.stream_version != expected:
            raise ValueError(
                f"execution {stream.execution_id}: event {envelope.event_id} has version "
                f"{envelope.stream_version} where {expected} follows"
            )
        if envelope.execution_id != stream.execution_id:
            raise ValueError(
                f"event {envelope.event_id} of execution {envelope.execution_id} stands among "
                f"those of {stream.execution_id}"
            )
