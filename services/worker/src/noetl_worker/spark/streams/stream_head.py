"""What a stream was begun with, and what a later run of it may not change."""

from noetl_chassis import identity
from noetl_contracts import codec
from noetl_worker.datasets import read_plan
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.spark.streams.checkpoint_objects import (
    CheckpointObjects,
    CheckpointVersion,
    StreamHead,
)
from noetl_worker.spark.streams.stream_request import SourceColumns, StreamPlan
from noetl_worker.spark.tables import file_source
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.spark.task_request import SparkRequest


def open_head(
    objects: CheckpointObjects,
    latest: CheckpointVersion | None,
    ask: SparkRequest,
    plan: StreamPlan,
) -> tuple[StreamHead, SourceColumns]:
    """Return the head of the checkpoint, a new one where there is none, and what is read now.

    Raises `SparkRefusal` for a stream from or to another place.
    """
    source, target = plan.address.shown_path, _show_target(ask)
    described = codec.digest_hex(codec.encode_canonical(codec.to_builtins(plan.source)))
    head = objects.find_head()
    if head is not None:
        _check_places(head, source, target, plan)
    for columns in (
        *([] if latest is None else [latest.columns]),
        *([] if head is None else [head.columns]),
    ):
        if head is not None and columns.described == described:
            return head, columns
    columns = _find_columns(plan, described)
    if head is not None:
        return head, columns
    begun = objects.create_head(
        StreamHead(token=identity.mint_token(), source=source, target=target, columns=columns)
    )
    _check_places(begun, source, target, plan)
    return begun, columns


def _show_target(ask: SparkRequest) -> str:
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
