"""A Spark task of mode stream: what its fields ask for, how it is followed, and what it gives."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import SparkProgress
from noetl_contracts.transient_objects import build_rejects_name
from noetl_playbook.model import datasets, streams
from noetl_playbook.model.streams import StreamInvalid, StreamOptions
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.spark.tables.stream_plans import StreamPlan, StreamWatch, TableTarget
from noetl_worker.spark.task_request import SparkRequest, SparkResult
from noetl_worker.tools.calls.call import Call, is_organization_name
from noetl_worker.tools.spark.spark_inputs import SparkInputReader

_BATCH = "batch"


class StreamTables(Protocol):
    """Opens tables of PostgreSQL for the batches of streams."""

    async def open_table(self, call: Call, home: StoreAddress) -> TableTarget:
        """Open the table that a call's `output` names; raises `ToolFailure`."""


def names_table(call: Call) -> bool:
    """Tell whether a call's rows go into a table of PostgreSQL."""
    sink = call.fields.get("sink")
    return isinstance(sink, Mapping) and sink.get(datasets.TABLE) is not None


def parse_mode(call: Call) -> StreamOptions | None:
    """Return how a task streams, None for one that ends with its rows; raises `ToolFailure`."""
    mode = call.fields.get("mode") or _BATCH
    if mode not in streams.MODES:
        raise _build_invalid_failure(f"mode is {mode!r:.40}: use {' or '.join(streams.MODES)}")
    fields = call.fields.get("follow")
    if mode == _BATCH:
        if fields is not None:
            raise _build_invalid_failure("'follow' belongs to mode: stream")
        return None
    try:
        return streams.parse_stream(fields)
    except StreamInvalid as problem:
        raise _build_invalid_failure(str(problem)) from problem


def name_arriving_input(inputs: Any, options: StreamOptions) -> str:
    """Return the name of the input that arrives; raises `ToolFailure`."""
    names = [str(name) for name in inputs] if isinstance(inputs, Mapping) else []
    if options.input is None and len(names) == 1:
        return names[0]
    if options.input not in names:
        text = (
            f"follow.input names the input that arrives, one of {', '.join(names) or 'inputs'}"
            if options.input is None
            else f"follow.input names '{options.input}', and the inputs are {', '.join(names)}"
        )
        raise _build_invalid_failure(text)
    return str(options.input)


async def describe_stream(
    call: Call,
    options: StreamOptions,
    name: str,
    *,
    reader: SparkInputReader,
    home: StoreAddress,
    is_near: bool,
) -> StreamPlan:
    """Describe the input that arrives; raises `ToolFailure`."""
    field = f"input '{name}'"
    fields = call.fields["inputs"][name]
    _check_source(fields, field)
    if home.is_in_process:
        text = (
            "a stream keeps its checkpoint in the payload store, and this worker's store is in "
            "its memory: set NOETL_WORKER_PAYLOAD_URL"
        )
        raise ToolFailure(build_error("config", text, source="spark"))
    source, address = await reader.describe_arrivals(name, fields, call, home)
    return StreamPlan(
        options=options,
        name=name,
        home=home,
        address=address,
        source=source,
        rejects=build_rejects_name(call.site.execution_id, token=options.checkpoint, dataset=name),
        execution_id=call.site.execution_id,
        is_near=is_near,
    )


def _check_source(fields: Any, field: str) -> None:
    """Refuse an input whose rows cannot arrive; raises `ToolFailure`."""
    path = fields.get("path") if isinstance(fields, Mapping) else None
    if not isinstance(path, str):
        raise _build_invalid_failure(
            f"{field}: a stream reads files that arrive at a 'path'; lake tables, queries and "
            "results are inputs beside it"
        )
    if datasets.is_web_path(path):
        raise _build_invalid_failure(
            f"{field}: nobody tells which files of a server are new: let them arrive in a bucket, "
            "or read this one in mode batch"
        )
    if not datasets.is_bucket_path(path) and not is_organization_name(path):
        raise _build_invalid_failure(
            f"{field}: files of an execution do not arrive, they are there: stream from "
            "s3://bucket/folder/ or noetl://files/folder/"
        )
    if fields.get("expect") is not None:
        raise _build_invalid_failure(
            f"{field}: rows of a stream are checked as they are written: put 'expect' into output"
        )


def check_request(ask: SparkRequest) -> None:
    """Refuse what no batch can do; raises `ToolFailure`."""
    if ask.code is not None:
        raise _build_invalid_failure("mode stream takes 'sql': code runs in mode batch")
    if ask.sink is None:
        raise _build_invalid_failure(
            "mode stream writes its batches: name output.path, output.delta, output.iceberg or "
            "output.table"
        )
    mode = ask.sink.mode
    if mode not in streams.OUTPUT_MODES:
        raise _build_invalid_failure(
            f"output.mode is {mode}: each batch of a stream adds to what is there, so choose "
            f"{', '.join(streams.OUTPUT_MODES)}"
        )


def tell_with_stream(
    call: Call, watch: StreamWatch
) -> Callable[[SparkProgress], Awaitable[None]] | None:
    """Return what tells the progress of a stream beside that of its jobs."""
    tell_progress = call.tell_progress
    if tell_progress is None:
        return None

    async def tell(progress: SparkProgress) -> None:
        await tell_progress(structs.replace(progress, stream=watch.progress))

    return tell


def build_streamed(result: SparkResult, ask: SparkRequest) -> dict[str, Any]:
    """Say what the batches of a task have written; the rows themselves are there."""
    report = result.stream
    assert report is not None, "the caller has looked"
    assert ask.stream is not None, "the task was one of mode stream"
    raw: dict[str, Any] = {
        "rows": [],
        "row_count": report.totals.rows,
        "columns": result.columns,
        "types": result.types,
        "statement_count": max(1, len(ask.statements)),
        "status": "ok",
        "stream": {
            "checkpoint": ask.stream.options.checkpoint,
            "batch_count": report.totals.batches,
            "file_count": report.totals.files,
            "last_batch": report.last_batch,
            "ended_by": report.ended_by,
        },
    }
    if ask.stream.options.watermark is not None:
        raw["stream"]["late_row_count"] = report.late_rows
    if result.written is not None:
        raw["written"] = codec.to_builtins(result.written)
    return raw


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="spark"))
