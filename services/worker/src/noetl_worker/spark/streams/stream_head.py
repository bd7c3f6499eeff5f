"""What a stream was begun with, and what a later run of it may not change."""

from msgspec import Struct

from noetl_chassis import identity
from noetl_contracts import codec
from noetl_worker.datasets import read_plan
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.spark.streams.checkpoint_objects import (
    CheckpointObjects,
    CheckpointVersion,
    StreamHead,
)
from noetl_worker.spark.tables import file_source
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.spark.tables.stream_plans import SourceColumns, StreamPlan, StreamTotals
from noetl_worker.spark.task_request import SparkRequest

# Where Spark's own checkpoint has what queries keep.
_STATE = "state/"


class OpenCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint as a run of its stream finds it; `latest` is None before the first batch.

    `query` is the digest of what decides what is kept between batches, `totals` what the execution
    has done so far.
    """

    objects: CheckpointObjects
    head: StreamHead
    latest: CheckpointVersion | None
    columns: SourceColumns
    query: str
    totals: StreamTotals


def open_checkpoint(ask: SparkRequest, plan: StreamPlan) -> OpenCheckpoint:
    """Open the checkpoint of a stream, a new one where there is none.

    Raises `SparkRefusal` for a stream from or to another place, and for another query over what an
    earlier one has kept.
    """
    objects = CheckpointObjects(plan.home, plan.options.checkpoint)
    described = codec.digest_hex(codec.encode_canonical(codec.to_builtins(plan.source)))
    head = _open_head(objects, described, ask, plan)
    objects.enter_folder(head)
    latest = objects.find_latest()
    columns = head.columns if latest is None else latest.columns
    if columns.described != described:
        columns = _find_columns(plan, described)
    query = _digest_query(ask, plan, columns)
    totals = StreamTotals(execution_id=plan.execution_id)
    if latest is not None:
        _check_query(latest, query, plan)
        if latest.totals.execution_id == plan.execution_id:
            totals = latest.totals
    return OpenCheckpoint(
        objects=objects, head=head, latest=latest, columns=columns, query=query, totals=totals
    )


def _open_head(
    objects: CheckpointObjects, described: str, ask: SparkRequest, plan: StreamPlan
) -> StreamHead:
    """Return the head of the checkpoint, a new one where there is none."""
    source, target = plan.address.shown_path, _show_target(ask)
    head = objects.find_head()
    if head is None:
        series = identity.mint_token()
        head = objects.create_head(
            StreamHead(
                series=series,
                source=source,
                target=target,
                columns=_find_columns(plan, described),
                folder=series,
            )
        )
    _check_places(head, source, target, plan)
    return head


def _show_target(ask: SparkRequest) -> str:
    if ask.table is not None:
        return ask.table.shown_path
    assert ask.target is not None, "the tool has described it"
    address, sink = ask.target.address.shown_path, ask.target.sink
    return address if sink.iceberg is None else f"{sink.iceberg.name} in {address}"


def _check_places(head: StreamHead, source: str, target: str, plan: StreamPlan) -> None:
    changes = [
        f"{verb} {before}, not {now}"
        for verb, before, now in (
            (f"reads input '{plan.name}' from", head.source, source),
            ("writes to", head.target, target),
        )
        if before != now
    ]
    if changes:
        text = (
            f"the stream of checkpoint '{plan.options.checkpoint}' {' and '.join(changes)}: give "
            "a stream between other places another follow.checkpoint"
        )
        raise SparkRefusal("validation", text)


def _find_columns(plan: StreamPlan, described: str) -> SourceColumns:
    """Find the columns of the files that are there, or of those that the playbook declares."""
    try:
        account = file_source.open_account(plan.home, plan.address)
        found = read_plan.build_arrival_plan(plan.address, plan.source, account)
    except DatasetProblem as problem:
        text = f"input '{plan.name}': {problem.message}"
        raise SparkRefusal(problem.kind, text) from problem
    return SourceColumns(described=described, format=found.format, schema=found.schema)


def _digest_query(ask: SparkRequest, plan: StreamPlan, columns: SourceColumns) -> str:
    """Fingerprint what decides what is kept between batches."""
    assert ask.sink is not None, "the tool has described it"
    about = {
        "statements": ask.statements,
        "params": ask.params,
        "watermark": plan.options.watermark,
        "mode": ask.sink.mode,
        "columns": columns.schema,
    }
    return codec.digest_hex(codec.encode_canonical(codec.to_builtins(about)))


def _check_query(version: CheckpointVersion, query: str, plan: StreamPlan) -> None:
    """Refuse another query over what an earlier one has kept; raises `SparkRefusal`."""
    if version.query == query or not _keeps_state(version):
        return
    text = (
        f"the query has changed since checkpoint '{plan.options.checkpoint}' was written (its SQL, "
        "params, watermark, output.mode, or the columns of its input), and it keeps state "
        "between batches that only the old one can use: give the changed stream another "
        "follow.checkpoint"
    )
    raise SparkRefusal("validation", text)


def _keeps_state(version: CheckpointVersion) -> bool:
    """Tell whether batches need what earlier ones have kept, as sums and windows do."""
    return any(name.startswith(_STATE) for name in version.files)
